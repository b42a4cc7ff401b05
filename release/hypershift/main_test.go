package main

import (
	"slices"
	"strings"
	"testing"
)

// What HyperShift starts, and what it becomes.
func TestCommandLinesOfHyperShift(t *testing.T) {
	for given, want := range map[string]string{
		"/usr/bin/proxy-server --server-ca-cert /ca --mode=http-connect":                  "/usr/bin/konnectivity-server --server-ca-cert /ca --mode=http-connect --graceful-shutdown-timeout=20s --cluster-ca-cert=/ca",
		"/usr/bin/proxy-server --server-ca-cert=/ca":                                      "/usr/bin/konnectivity-server --server-ca-cert=/ca --graceful-shutdown-timeout=20s --cluster-ca-cert=/ca",
		"/usr/bin/proxy-server --server-ca-cert=/ca --cluster-ca-cert /b":                 "/usr/bin/konnectivity-server --server-ca-cert=/ca --cluster-ca-cert /b --graceful-shutdown-timeout=20s",
		"/usr/bin/proxy-server --server-ca-cert=/ca --cluster_ca_cert=/b":                 "/usr/bin/konnectivity-server --server-ca-cert=/ca --cluster_ca_cert=/b --graceful-shutdown-timeout=20s",
		"/usr/bin/proxy-server --server-ca-cert=/ca --agent-service-account=a":            "/usr/bin/konnectivity-server --server-ca-cert=/ca --agent-service-account=a --graceful-shutdown-timeout=20s",
		"/usr/bin/proxy-server --uds-name=/s":                                             "/usr/bin/konnectivity-server --uds-name=/s --graceful-shutdown-timeout=20s",
		"/usr/bin/proxy-server --graceful-shutdown-timeout 5s":                            "/usr/bin/konnectivity-server --graceful-shutdown-timeout 5s",
		"/usr/bin/proxy-agent version":                                                    "/usr/bin/konnectivity-agent version",
		"/usr/bin/proxy-agent --v 3":                                                      "/usr/bin/konnectivity-agent --v 3 --graceful-shutdown-timeout=25s",
		"/usr/bin/control-plane-operator konnectivity-socks5-proxy run -x":                "/usr/bin/konnectivity-socks5-proxy run -x --answer-tcp-probes --shutdown-delay=20s --drain-timeout=5s",
		"/usr/bin/control-plane-operator konnectivity-https-proxy run":                    "/usr/bin/konnectivity-https-proxy run --answer-tcp-probes --shutdown-delay=20s --drain-timeout=5s",
		"/usr/bin/control-plane-operator konnectivity-https-proxy run --drain-timeout=5s": "/usr/bin/konnectivity-https-proxy run --drain-timeout=5s --answer-tcp-probes",
	} {
		got, err := resolve(strings.Fields(given))
		if err != nil || !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s:\n got %q, %v\nwant %q", given, got, err, want)
		}
	}
}

func TestAnythingElseIsToldWhatThisIs(t *testing.T) {
	for _, given := range []string{"/usr/bin/control-plane-operator", "/usr/bin/control-plane-operator run --namespace=x"} {
		got, err := resolve(strings.Fields(given))
		if err == nil || !strings.Contains(err.Error(), "konnectivity-socks5-proxy run") {
			t.Errorf("%s: %q, %v", given, got, err)
		}
	}
}
