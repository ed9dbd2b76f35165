r"""Secrets in command lines and scripts, masked before anything is stored: on the node by sed, here once more.

Both know the same shapes: the value of an option or a variable whose name says key, token, password or secret, tokens
that are known by their beginning, and passwords in addresses.
"""

from __future__ import annotations

import re

_VALUE = r"""[^ \t"',;\\]"""
_OPTION = r"--[A-Za-z0-9_-]*(?:api[_-]key|token|password|secret)"
_VARIABLE = r"(?:[A-Za-z0-9_]*(?:API_KEY|_TOKEN|PASSWORD|_SECRET|SECRET_KEY))"
_KNOWN = re.compile(
    r"(hf_|sk-|nvapi-|ghp_|gho_|ghs_|glpat-|github_pat_)[A-Za-z0-9_-]{8,}|"
    rf"((?<![A-Za-z0-9_-]){_OPTION}(?:=|[ \t]+|[\"'], ?[\"'])\\?[\"']?)(?!\*\*\*)(?![-$])({_VALUE}+)|"
    rf"((?<![A-Za-z0-9_]){_VARIABLE}(?:=|: )[\"']?)(?!\*\*\*)(?![$])({_VALUE}+)|"
    r"(://[^ /:@\"',]{0,64}:)[^ /@\"',]{1,200}(?=@)|"
    r"([Bb]earer )[A-Za-z0-9._~+/=-]{6,}"
)

# The same as a script of POSIX sed, which knows no alternatives. The probe gives it to its sections as SPARKWEB_MASK.
SED = "\n".join(
    [
        *(
            rf"""s/\({name}\)\([= ]\\\{{0,1\}}["']\{{0,1\}}\)[^ "'$\\-][^ "'\\]*/\1\2***/g"""
            for name in (
                "--[A-Za-z0-9_-]*api[_-]key",
                "--[A-Za-z0-9_-]*token",
                "--[A-Za-z0-9_-]*password",
                "--[A-Za-z0-9_-]*secret",
            )
        ),
        *(
            rf"""s/\({name}\)\([=:] *["']\{{0,1\}}\)[^ "'$\\*][^ "'\\]*/\1\2***/g"""
            for name in ("API_KEY", "_TOKEN", "PASSWORD", "_SECRET", "SECRET_KEY")
        ),
        # `"--api-key", "x"` of a list, on one line and on two
        r"""s/\(--[A-Za-z0-9_-]*api[_-]key["'], *["']\)[^"']*/\1***/g""",
        r"""/--[A-Za-z0-9_-]*api[_-]key["',]*$/{""" + "\nn\n" + r"""s/[^ "',-][^"',]*/***/""" + "\n}",
        r"s/\([Bb]earer \)[A-Za-z0-9._~+/=-]\{6,\}/\1***/g",
        r"s/hf_[A-Za-z0-9]\{8,\}/hf_***/g",
        r"s/nvapi-[A-Za-z0-9_-]\{8,\}/nvapi-***/g",
        r"s/sk-[A-Za-z0-9_-]\{16,\}/sk-***/g",
        r"""s|\(://[^ /:@"',]*:\)[^ /@"',]*@|\1***@|g""",
    ]
)


def masked(text: str) -> str:
    """The text with `***` in the place of every secret that is known by its shape."""

    def hidden(found: re.Match[str]) -> str:
        return next(part for part in found.group(1, 2, 4, 6, 7) if part is not None) + "***"

    return _KNOWN.sub(hidden, text)
