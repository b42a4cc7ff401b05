// Command hypershift replaces, in HyperShift's pods, the programs that they start, under
// the same names. It adds the flags that HyperShift's command lines lack, and runs one
// of the suite's programs in its own place, by exec.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// original is where an image that is built on HyperShift's keeps the program
// that this one replaced.
const original = "/usr/bin/control-plane-operator.hypershift"

func main() {
	argv, err := resolve(os.Args)
	if err == nil {
		err = syscall.Exec(argv[0], argv, os.Environ())
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
	os.Exit(1)
}

// resolve is the command line to go on with, by the name of this one.
func resolve(args []string) ([]string, error) {
	switch filepath.Base(args[0]) {
	case "proxy-server":
		return server(args[1:]), nil
	case "proxy-agent":
		return agent(args[1:]), nil
	}
	if len(args) > 1 && (args[1] == "konnectivity-socks5-proxy" || args[1] == "konnectivity-https-proxy") {
		return sidecar(args[1], args[2:]), nil
	}
	if _, err := os.Stat(original); err == nil {
		return append([]string{original}, args[1:]...), nil
	}
	return nil, fmt.Errorf("this image serves konnectivity only: \"konnectivity-socks5-proxy run\" and \"konnectivity-https-proxy run\". "+
		"For the rest of HyperShift's control-plane-operator, build on its image (docs/hypershift.md) and keep its program as %s", original)
}

// server adds the CA of agents where it is missing, as in HyperShift until 21 July 2026: any
// client that reached the port could be an agent. Its agents do have certificates, of the CA
// that signs clients' as well.
//
// Of the pod's 95 s of grace, the preStop hook takes 70.
func server(args []string) []string {
	argv := drain("20s", append([]string{"/usr/bin/konnectivity-server"}, args...))
	if gives(args, "cluster-ca-cert", "agent-service-account", "allow-unauthenticated-agents") {
		return argv
	}
	if ca, given := value(args, "server-ca-cert"); given {
		argv = append(argv, "--cluster-ca-cert="+ca)
	}
	return argv
}

// agent ends within a pod's usual 30 s of grace.
func agent(args []string) []string {
	return drain("25s", append([]string{"/usr/bin/konnectivity-agent"}, args...))
}

// drain has a program end by itself before it would be killed, unless its command
// line says when, or is a subcommand's.
func drain(within string, argv []string) []string {
	if gives(argv, "graceful-shutdown-timeout") || len(argv) > 1 && !strings.HasPrefix(argv[1], "-") {
		return argv
	}
	return append(argv, "--graceful-shutdown-timeout="+within)
}

// sidecar answers probes by TCP, which kubelet sends to the pod's address and
// not to loopback, where the proxy listens.
//
// After SIGTERM, which all containers of a pod get at once, openshift-apiserver takes requests for
// 15 s more. An image import that begins then needs new connections for some seconds. What is left
// of a pod's usual 30 s of grace, less 5 s, is for connections that are open.
func sidecar(name string, args []string) []string {
	argv := append(append([]string{"/usr/bin/" + name}, args...), "--answer-tcp-probes")
	if gives(args, "shutdown-delay", "drain-timeout") {
		return argv
	}
	return append(argv, "--shutdown-delay=20s", "--drain-timeout=5s")
}

// gives reports whether one of the flags is given.
func gives(args []string, flags ...string) bool {
	return slices.ContainsFunc(flags, func(flag string) bool {
		_, given := value(args, flag)
		return given
	})
}

// value finds a flag in either of its spellings: --flag=value and --flag value.
func value(args []string, flag string) (string, bool) {
	i := slices.IndexFunc(args, func(arg string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		return strings.HasPrefix(arg, "--") && strings.ReplaceAll(name, "_", "-") == flag
	})
	if i < 0 {
		return "", false
	}
	if _, v, ok := strings.Cut(args[i], "="); ok {
		return v, true
	}
	if i+1 < len(args) {
		return args[i+1], true
	}
	return "", true
}
