"""All names that Kubernetes allows, by the validation of k8s.io/apimachinery and apiextensions.

A group version of a definition is a DNS-1035 label, whatever `v1` and `v1beta1` suggest; so are its
plural, singular and short names, and its kinds in lower case. A group is a DNS-1123 subdomain; that
of an aggregated API may have no dot. Names of objects are DNS-1123 subdomains for most kinds, and
any path segment for those of RBAC.
"""

from __future__ import annotations

import string

from hypothesis import strategies as st

_LOWER = string.ascii_lowercase
_SUBDOMAIN = 253
_LETTERS = _LOWER + string.digits


def _words(first: str, middle: str, last: str, longest: int = 63) -> st.SearchStrategy[str]:
    several = st.tuples(
        st.sampled_from(first), st.text(middle, max_size=longest - 2), st.sampled_from(last)
    )
    return st.sampled_from(first) | several.map("".join)


def _mixed(word: str, upper: list[bool]) -> str:
    letters = zip(word, upper, strict=False)
    return "".join(letter.upper() if is_upper else letter for letter, is_upper in letters)


def _is_short(name: str) -> bool:
    return len(name) <= _SUBDOMAIN


DNS_1035 = _words(_LOWER, _LETTERS + "-", _LETTERS)
"""IsDNS1035Label: `[a-z]([-a-z0-9]*[a-z0-9])?`, at most 63 characters."""
DNS_1123 = _words(_LETTERS, _LETTERS + "-", _LETTERS)
"""IsDNS1123Label: `[a-z0-9]([-a-z0-9]*[a-z0-9])?`, at most 63 characters."""
SUBDOMAINS = st.lists(DNS_1123, min_size=1, max_size=5).map(".".join).filter(_is_short)
"""IsDNS1123Subdomain, at most 253 characters; `1.2` is one, too."""
API_VERSIONS = DNS_1035 | st.sampled_from(["v1", "v2alpha1", "version7", "foo", "v1beta", "v0"])
API_GROUPS = SUBDOMAINS | st.sampled_from(["apps", "v1.example.org", "lab.example.org"])
PLURALS = DNS_1035 | st.sampled_from(["pods", "v1", "list"])
KINDS = st.builds(_mixed, DNS_1035, st.lists(st.booleans(), min_size=63, max_size=63))
"""IsDNS1035Label of the name in lower case: `Pod`, `LanternCollection`, `hTTP-proxy`."""
OBJECT_NAMES = SUBDOMAINS | st.text(
    string.ascii_letters + string.digits + "-_.:@+ ", min_size=1, max_size=253
).filter(lambda name: name not in {".", ".."})
"""IsDNS1123Subdomain, or IsValidPathSegmentName, as for Roles: neither `/` nor `%`."""
