package main

import "testing"

func TestNotesAreTheSectionOfTheVersion(t *testing.T) {
	const changelog = "# Changelog\n\n## Unreleased\n\n- new\n\n## [v1.2.0] - 2026-01-02\n\n- second\n\n## 1.1.0\n\n- first\n"
	for title, want := range map[string]string{"Unreleased": "- new", "1.2.0": "- second", "1.1.0": "- first", "1.2": "", "1.0.0": ""} {
		equal(t, section(changelog, title), want, "%s", title)
	}
}

func TestManPagesBelongToTheProgramOfTheLongestName(t *testing.T) {
	for page, want := range map[string]string{
		"konnectivity.1": "konnectivity", "konnectivity-certs.1": "konnectivity", "konnectivity-agent.1": "konnectivity-agent",
		"konnectivity-agent-version.1": "konnectivity-agent", "konnectivity-socks5-proxy.1": "konnectivity-socks5-proxy", "other.1": "",
	} {
		equal(t, owner(page), want, "%s", page)
	}
}
