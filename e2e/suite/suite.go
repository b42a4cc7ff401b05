package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"konnectivity/internal/testutil"
)

// patience is how long anything on this machine may take to start, busy as it may
// be.
const patience = time.Minute

// Binaries is a folder with the suite's programs.
type Binaries string

// buildFlags are those of make build that change what a program does or how
// large it is.
func buildFlags() []string {
	return []string{"-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w"}
}

// ProgramsEnv names a folder with the suite's programs, which make has built once for all
// tests that start them.
const ProgramsEnv = "KONNECTIVITY_PROGRAMS"

// Build compiles every command of the module into dir, as make build does, or returns the
// folder of ProgramsEnv, if that is set. moduleRoot is the folder of go.mod.
func Build(moduleRoot, dir string) (Binaries, error) {
	if built := os.Getenv(ProgramsEnv); built != "" {
		return Binaries(built), nil
	}
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, buildFlags()...)
	cmd := exec.Command("go", append(args, "./cmd/...")...)
	cmd.Dir = moduleRoot
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return Binaries(dir), nil
}

// Path returns the file of one program; an absolute path names a program outside the suite.
func (b Binaries) Path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(string(b), name)
}

// Suite is a set of running programs that share a PKI. Tests that run at once may
// start programs of one.
type Suite struct {
	Bin Binaries
	Dir string // scratch; sockets live here, so keep it short

	// Descriptors, if set, is how many files a program that is started later
	// may have open (ulimit -n).
	Descriptors int

	// Env is added to the environment of programs that are started later.
	Env []string

	// On, if set, has the threads of programs that are started later: it runs fn to its end
	// on one that nothing else uses, in a network of its own, for example.
	On func(fn func() error) error

	mu      sync.Mutex
	procs   []*Process
	release []func() // of ports
}

// New returns a Suite with a new PKI in dir. more is added to the flags of
// `konnectivity certs`.
func New(bin Binaries, dir string, more ...string) (*Suite, error) {
	s := &Suite{Bin: bin, Dir: dir}
	out, err := exec.Command(bin.Path("konnectivity"), append([]string{"certs", s.PKI("")}, more...)...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("konnectivity certs: %w\n%s", err, out)
	}
	return s, nil
}

// PKI returns the path of a file made by `konnectivity certs`: ca.crt,
// server.crt, ...
func (s *Suite) PKI(name string) string { return filepath.Join(s.Dir, "pki", name) }

// Run starts a program of the suite; Close ends it.
func (s *Suite) Run(program string, env []string, args ...string) (*Process, error) {
	path := s.Bin.Path(program)
	if s.Descriptors > 0 {
		limited := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, s.Descriptors)
		path, args = "/bin/sh", append([]string{"-c", limited, path}, args...)
	}
	p, err := StartOn(program, command(path, args, append(env, s.Env...)), s.On)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs = append(s.procs, p)
	return p, nil
}

// Close ends every process, the last one first, and releases their ports.
func (s *Suite) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.procs) {
		p.Kill()
	}
	for _, release := range s.release {
		release()
	}
	s.procs, s.release = nil, nil
}

// Processes returns all that were started, in order.
func (s *Suite) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.procs)
}

// Reserve returns ports that belong to this suite until Close.
func (s *Suite) Reserve(n int) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := make([]int, n)
	for i := range ports {
		port, release, err := testutil.Reserve()
		if err != nil {
			return nil, err
		}
		ports[i] = port
		s.release = append(s.release, release)
	}
	return ports, nil
}

// Loopback returns host:port for a port of this machine.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// WaitReady waits until a health URL answers 200, p ends, or patience has
// passed.
func WaitReady(p *Process, url string) error {
	return waitFor(p, func(ctx context.Context) error {
		_, err := Get(ctx, url, io.Discard)
		return err
	})
}

// Get copies a page, and returns its size in bytes. A status other than 200 is an error.
func Get(ctx context.Context, url string, to io.Writer) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answers %s", url, res.Status)
	}
	return io.Copy(to, res.Body)
}

// WaitListening waits until something accepts connections at address.
func WaitListening(p *Process, network, address string) error {
	return waitFor(p, func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, address)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

func waitFor(p *Process, check func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("%s ended before it was ready:\n%s", p.Name, p.Output())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not ready after %v:\n%s", p.Name, patience, p.Output()), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
