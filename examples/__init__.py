"""Small programs that use Draftloop; each runs against `draftloop up`."""
