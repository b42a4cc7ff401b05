package tenant

import (
	"fmt"
	"path/filepath"
)

// ListenSettings says where the server listens for one tenant alone; zero values: nowhere.
type ListenSettings struct {
	AgentPort    int    `json:"agentPort,omitempty"`
	ClientPort   int    `json:"clientPort,omitempty"`
	ClientSocket string `json:"clientSocket,omitempty"` // the path of a unix socket
}

// Address is a port or a unix socket that is one tenant's alone.
type Address struct {
	Agents bool   // for its agents; else for its clients
	Port   int    // 0: it is a socket
	Socket string // its path
}

// Addresses are where the server listens for the tenant alone.
func (t *Spec) Addresses() (all []Address) {
	for _, p := range []Address{{Agents: true, Port: t.Listen.AgentPort}, {Port: t.Listen.ClientPort}, {Socket: t.Listen.ClientSocket}} {
		if p != (Address{Agents: p.Agents}) {
			all = append(all, p)
		}
	}
	return all
}

// Field is where tenant.yaml has it.
func (p Address) Field() string {
	switch {
	case p.Agents:
		return "listen.agentPort"
	case p.Port > 0:
		return "listen.clientPort"
	default:
		return "listen.clientSocket"
	}
}

// String is such as "agents on port 9091".
func (p Address) String() string {
	if p.Agents {
		return "agents on " + p.place()
	}
	return "clients on " + p.place()
}

// place is such as "port 9091", or the path of the socket.
func (p Address) place() string {
	if p.Port > 0 {
		return fmt.Sprint("port ", p.Port)
	}
	return p.Socket
}

// addressClaims are those of a tenant's addresses. Their keys begin as no server name does, and no
// CA.
func (t *Spec) addressClaims() (all []claim) {
	for _, p := range t.Addresses() {
		what := p.place() + " is that of"
		if p.Port > 0 {
			what = "the " + what
		}
		all = append(all, claim{key: ":" + p.place(), file: SettingsFile, field: p.Field(), what: what})
	}
	return all
}

func (l ListenSettings) check() error {
	for _, port := range []struct {
		field  string
		number int
	}{{"agentPort", l.AgentPort}, {"clientPort", l.ClientPort}} {
		if port.number < 0 || port.number > 65535 {
			return fieldError("listen."+port.field, "%d: want a port from 1 to 65535, or leave it out", port.number)
		}
	}
	if l.ClientPort > 0 && l.ClientPort == l.AgentPort {
		return fieldError("listen.clientPort", "%d is agentPort, too", l.ClientPort)
	}
	if s := l.ClientSocket; s != "" && (!filepath.IsAbs(s) || filepath.Clean(s) != s) {
		return fieldError("listen.clientSocket", "%.300q: want the whole path of a unix socket, without . and ..", s)
	}
	return nil
}

// whole says whether agents and clients both have a place, and so need no name.
func (l ListenSettings) whole() bool {
	return l.AgentPort > 0 && (l.ClientPort > 0 || l.ClientSocket != "")
}
