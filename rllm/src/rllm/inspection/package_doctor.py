"""The checkup's part on the packages that plugins ask for."""

from __future__ import annotations

from collections.abc import Iterator

from rllm.config.missing_packages import outside
from rllm_core.contracts.finding import Finding
from rllm_core.plugins.discovery import CORE, Discovery, normalize
from rllm_core.plugins.requirements import missing


def examine_packages(discovery: Discovery) -> Iterator[Finding]:
    """Find missing packages and untested versions. The core's version is not checked here: it makes plugins broken."""
    commands = [candidate for candidate in discovery.commands if not candidate.blocked_by]
    names = {normalize(each.distribution): each.distribution for each in (*discovery.candidates, *commands)}
    for name in (CORE, *sorted(names)):
        subject = names.get(name, CORE)
        for unmet in missing(subject):
            yield Finding(
                code="missing-package",
                severity="error",
                subject=subject,
                problem=f"requires {unmet.requirement}, which is not installed",
                remedy=f"pip install '{unmet.requirement}'",
            )
        for unmet in outside(subject):
            if normalize(unmet.name) != CORE:
                yield Finding(
                    code="wrong-version",
                    severity="warning",
                    subject=subject,
                    problem=f"requires {unmet.requirement}, and {unmet.installed} is installed, which is not tested",
                    remedy=f"pip install '{unmet.requirement}'",
                )
