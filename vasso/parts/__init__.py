"""Parts of a method: directions, geometries, ascents, descents, policies, plans."""

from vasso.parts.part import Part as Part
from vasso.parts.part import Range as Range
from vasso.parts.part import Setting as Setting
