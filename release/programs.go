package main

// program is one of the suite's, and how a package installs it.
type program struct {
	name    string
	summary string
	command string // the Go expression that makes its cobra command
	service string // its folder in /etc/konnectivity and its files in files/; "" is no service
}

// plugin is the name under which kubectl finds the operator's tool.
const plugin = "kubectl-konnectivity"

var programs = []program{
	{name: "konnectivity", command: "newRoot()",
		summary: "Operator's tool of the konnectivity suite: certificates, checks, status"},
	{name: "konnectivity-server", command: "newCommand()", service: "server",
		summary: "Konnectivity server: serves clients destinations that only agents can reach"},
	{name: "konnectivity-agent", command: "newCommand()", service: "agent",
		summary: "Konnectivity agent: connects a data plane to its konnectivity servers"},
	{name: "konnectivity-socks5-proxy", command: "sidecar.NewCommand(sidecar.SOCKS5)", service: "socks5-proxy",
		summary: "SOCKS5 proxy that reaches a konnectivity server's agents"},
	{name: "konnectivity-https-proxy", command: "sidecar.NewCommand(sidecar.HTTP)", service: "https-proxy",
		summary: "HTTP and HTTPS proxy that reaches a konnectivity server's agents"},
}
