package fences

import "slices"

// module is the import path of the repository's root.
const module = "konnectivity"

// rule says what the packages under a folder may import besides the standard
// library. The rule of the longest matching folder holds. A package may always
// import what lies in its own rule's folder.
type rule struct {
	folder string
	own    []string // packages of this module, in the manner of go list: x or x/...
	third  []string // prefixes of other modules' import paths; nil is none
}

// anyModule allows every module of go.mod.
var anyModule = []string{""}

// rules is the layout of the suite. Each line is narrower than it needs to be
// for a compiler, and for a reason: the vocabulary depends on nothing, the
// protocols only on the vocabulary, the fronts on neither protocols nor flags.
var rules = []rule{
	{folder: "cmd", own: []string{"..."}, third: anyModule},

	{folder: "tunnel", own: []string{"tunnel/shares"}},
	{folder: "tunnel/shares"},
	{folder: "tunnel/race", own: []string{"tunnel"}},
	{folder: "tunnel/connect", own: []string{"tunnel"}},
	{folder: "tunnel/link", own: []string{"tunnel", "tunnel/shares"}, third: []string{
		"golang.org/x/sys", "github.com/sirupsen/logrus", "github.com/prometheus/client_golang"}},
	{folder: "tunnel/resume", own: []string{"tunnel", "tunnel/link"}, third: []string{"github.com/sirupsen/logrus"}},
	{folder: "tunnel/lanes", own: []string{"tunnel", "tunnel/link"}},
	{folder: "tunnel/legacy", own: []string{"tunnel", "tunnel/shares", "tunnel/link"}, third: []string{
		"google.golang.org/", "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto",
		"github.com/sirupsen/logrus", "github.com/prometheus/client_golang"}},

	{folder: "server", own: []string{"tunnel/...", "internal/..."}, third: anyModule},
	{folder: "agent", own: []string{"tunnel/...", "internal/..."}, third: anyModule},
	{folder: "adapters", own: []string{"tunnel/...", "internal/..."}, third: anyModule},
	{folder: "client", own: []string{"tunnel/...", "adapters/uplink", "internal/tlsreload", "internal/files", "internal/pki", "internal/logging"}, third: []string{"github.com/sirupsen/logrus"}},
	{folder: "socks5", own: []string{"tunnel", "adapters/...", "internal/front", "internal/admission", "internal/files", "internal/logging", "internal/wait"}, third: anyModule},
	{folder: "httpsproxy", own: []string{"tunnel", "tunnel/shares", "adapters/...", "internal/front", "internal/admission", "internal/logging"}, third: anyModule},

	{folder: "internal", own: []string{"tunnel/..."}, third: anyModule},
	{folder: "internal/front", own: []string{"tunnel", "internal/admission", "internal/logging"}, third: []string{
		"golang.org/x/sys", "github.com/sirupsen/logrus", "github.com/prometheus/client_golang"}},
	{folder: "internal/admission", own: []string{"tunnel", "internal/wait"}, third: []string{"github.com/sirupsen/logrus"}},
	{folder: "internal/cli", own: []string{"internal/version", "internal/logging", "internal/nameserver", "internal/resources", "internal/pki"}, third: anyModule},
	{folder: "internal/files"},
	{folder: "internal/logging", own: []string{"internal/files"}, third: []string{"github.com/sirupsen/logrus"}},
	{folder: "internal/observe", own: []string{"internal/version", "internal/logging", "internal/admission", "internal/tlsreload", "tunnel", "tunnel/link", "tunnel/resume"}, third: anyModule},
	{folder: "internal/pki"},
	{folder: "internal/peers", own: []string{"tunnel", "internal/wait"}},
	{folder: "internal/tlsreload", own: []string{"internal/files", "internal/logging", "internal/wait"}, third: []string{"github.com/sirupsen/logrus"}},
	{folder: "internal/version"},
	{folder: "internal/wait"},

	// Black-box tests speak to binaries from outside; they may make
	// certificates, and know the words for a connection.
	{folder: "e2e", own: []string{"tunnel/...", "internal/..."}, third: anyModule},
	{folder: "manifests", own: []string{"..."}, third: anyModule},
	{folder: "release", own: []string{"..."}, third: anyModule},
	{folder: "docs", own: []string{"..."}, third: anyModule},
}

// linked is a package that programs may not link, however indirectly.
type linked struct {
	pkg    string
	except []string // programs that may
	why    string
}

// notInBinaries lists them.
var notInBinaries = []linked{
	{"k8s.io/client-go/kubernetes", nil, "the whole clientset costs 100 packages; use the typed clients"},
	{"k8s.io/client-go/gentype", nil, "it links the machinery of fakes and apply; internal/kubeapi does without"},
	{"html/template", nil, "it calls methods by name, so the linker keeps every method of everything"},
	{"github.com/hashicorp/yamux", nil, "a yardstick, for benchmarks only"},
	{"go.uber.org/goleak", nil, "for tests only"},
	{"github.com/google/nftables", []string{"cmd/konnectivity"}, "sidecars run beside every component, and are to stay small"},
	{"google.golang.org/grpc", []string{"cmd/konnectivity", "cmd/konnectivity-agent", "cmd/konnectivity-server"}, "it adds 0.6 MB to sidecars, which do not speak it"},
	{"testing", nil, "test helpers belong to tests"},
	// The operator's tool plays kube-apiserver, with what kube-apiserver uses.
	{"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client", []string{"cmd/konnectivity"},
		"the real client is for tests; ours speaks the protocol itself"},
}

// call is a function that packages may not use, as it is written.
type call struct {
	pkg, name string   // import path and identifier; Print* is all that begin so
	except    []string // folders where it is allowed
	why       string
}

// atOnce are folders whose code reads files once, for whoever waits for it.
var atOnce = []string{"cmd", "e2e", "manifests", "release", "docs"}

// calls lists what is banned outside tests.
var calls = []call{
	{"os", "Exit", []string{"cmd", "e2e"}, "only a main ends the process"},
	{"os", "ReadFile", slices.Concat(atOnce, []string{"tunnel/link", "internal/bench", "internal/testutil"}), "a pipe in the file's place would be waited for, perhaps under a lock; use internal/files"},
	{"os", "Open", slices.Concat(atOnce, []string{"internal/files"}), "a pipe would be waited for; use internal/files"},
	{"log", "Print*", nil, "loggers are handed in"},
	{"log", "Panic*", nil, "loggers are handed in"},
	{"log", "Set*", []string{"internal/cli"}, "it changes the whole process"},
	{"log", "Default", nil, "loggers are handed in"},
	{"github.com/sirupsen/logrus", "StandardLogger", nil, "loggers are handed in"},
	{"k8s.io/klog/v2", "*", []string{"internal/cli"}, "loggers are handed in"},
	{"github.com/prometheus/client_golang/prometheus", "MustRegister", nil, "register on the Registerer that is handed in"},
	{"github.com/prometheus/client_golang/prometheus", "Register", nil, "register on the Registerer that is handed in"},
	{"github.com/prometheus/client_golang/prometheus", "DefaultRegisterer", nil, "register on the Registerer that is handed in"},
	{"github.com/prometheus/client_golang/prometheus", "DefaultGatherer", nil, "gather from the registry that is handed in"},
	{"github.com/prometheus/client_golang/prometheus/promauto", "*", nil, "it registers on a global registry"},
	{"net/http", "DefaultServeMux", nil, "a global that imports write to"},
	{"net/http", "Handle", nil, "it writes to the global mux"},
	{"net/http", "HandleFunc", nil, "it writes to the global mux"},
	{"net/http", "ListenAndServe", nil, "it has no timeouts and no end"},
	{"net/http", "DefaultClient", []string{"e2e"}, "it has no timeout and reads the environment"},
	{"net/http", "DefaultTransport", nil, "it is shared and reads the environment"},
	{"net/http", "Get", []string{"e2e"}, "it has no timeout and reads the environment"},
}
