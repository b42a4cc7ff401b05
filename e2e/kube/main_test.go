package kube

import (
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
	os.Exit(suite.Main(m, "../..", &binaries))
}
