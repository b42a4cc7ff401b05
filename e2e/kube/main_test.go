package kube

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"k8s.io/klog/v2"

	"konnectivity/e2e/suite"
)

// binaries are built once; set by TestMain and read only.
var binaries suite.Binaries

func TestMain(m *testing.M) {
	// konnectivity-client logs every tunnel that a test cuts.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	dir, err := os.MkdirTemp("", "kbin")
	if err == nil {
		binaries, err = suite.Build("../..", dir)
	}
	status := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		status = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(status)
}
