package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// runtimes is a containerd of the test's own.
type runtimes struct {
	t       *testing.T
	address string
	version string // of the images
	n       int    // containers so far
}

func newRuntime(t *testing.T) *runtimes {
	t.Helper()
	lean := artefact(t, "konnectivity_*_oci.tar")
	folder := must(os.MkdirTemp("", "ctr"))(t) // a socket's path must be short
	t.Cleanup(func() {
		_ = os.RemoveAll(folder)
		leaveNothing(t, filepath.Base(folder))
	})
	config := fmt.Sprintf("version = 2\nroot = %[1]q\nstate = %[2]q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %[3]q\n",
		folder+"/root", folder+"/state", folder+"/sock")
	noError(t, os.WriteFile(folder+"/config.toml", []byte(config), 0o600))
	startDaemon(t, "containerd", "--config", folder+"/config.toml")
	r := &runtimes{t: t, address: folder + "/sock"}
	eventually(t, "containerd", func() error { _, err := r.try("version"); return err })
	for _, archive := range []string{lean, artefact(t, "konnectivity-agent_*_oci.tar"), artefact(t, "konnectivity-hypershift_*_oci.tar")} {
		r.ctr("images", "import", archive)
	}
	name := filepath.Base(lean)
	r.version = "v" + strings.TrimSuffix(strings.TrimPrefix(name, "konnectivity_"), "_oci.tar")
	return r
}

// startDaemon runs a command until the test ends, or this program does.
func startDaemon(t *testing.T, name string, args ...string) {
	t.Helper()
	log := must(os.Create(filepath.Join(t.TempDir(), name)))(t)
	daemon := exec.Command("setpriv", append([]string{"--pdeathsig=TERM", name}, args...)...)
	daemon.Stdout, daemon.Stderr = log, log
	noError(t, daemon.Start())
	t.Cleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		err := daemon.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s: %v\n%s", name, err, text)
		}
		_ = log.Close()
	})
}

// leaveNothing removes what runc keeps for a namespace without containers: its
// folder, and the parent of their cgroups in every hierarchy.
func leaveNothing(t *testing.T, namespace string) {
	t.Helper()
	folders := []string{filepath.Join("/run/containerd/runc", namespace)}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found := must(filepath.Glob(filepath.Join(pattern, namespace)))(t)
		folders = append(folders, found...)
	}
	for _, folder := range folders {
		if err := os.Remove(folder); err != nil && !os.IsNotExist(err) {
			t.Errorf("left behind: %v", err)
		}
	}
}

func (r *runtimes) ctr(args ...string) string {
	r.t.Helper()
	return command(r.t, "ctr", append(r.own(), args...)...)
}

func (r *runtimes) try(args ...string) (string, error) {
	r.t.Helper()
	return try(r.t, "ctr", append(r.own(), args...)...)
}

// own is where containers of this test are: runc knows them by namespace and
// name, whatever containerd they are of.
func (r *runtimes) own() []string {
	return []string{"--address", r.address, "--namespace", filepath.Base(filepath.Dir(r.address))}
}

// container is one of a pod: what its manifest says.
type container struct {
	image   string
	command []string
	env     []string
	mounts  map[string]string // from a path in the container to one here
	pod     string            // the name of its network
}

// start runs a container until the test ends, and returns its name.
func (r *runtimes) start(c container) string {
	r.t.Helper()
	r.n++
	name := fmt.Sprint("c", r.n)
	log := filepath.Join(r.t.TempDir(), name)
	args := []string{"run", "--detach", "--with-ns", "network:/run/netns/" + c.pod, "--log-uri", "file://" + log}
	for _, e := range c.env {
		args = append(args, "--env", e)
	}
	for to, from := range c.mounts {
		args = append(args, "--mount", "type=bind,src="+from+",dst="+to+",options=rbind:ro")
	}
	r.ctr(append(append(args, "docker.io/library/"+c.image+":"+r.version, name), c.command...)...)
	r.t.Cleanup(func() {
		r.stop(name)
		if r.t.Failed() {
			text, _ := os.ReadFile(log)
			r.t.Logf("%v: %s", c.command, text)
		}
	})
	return name
}

// says runs a container that ends by itself, and returns what it wrote. The shim
// writes that to a file: on a busy machine, ctr loses what a container has written
// that ends before ctr has opened its end of the pipe.
func (r *runtimes) says(image, name string, command ...string) string {
	r.t.Helper()
	return r.saysWith(nil, image, name, command...)
}

// saysWith is says with more options of ctr run.
func (r *runtimes) saysWith(options []string, image, name string, command ...string) string {
	r.t.Helper()
	log := filepath.Join(r.t.TempDir(), name)
	args := append([]string{"run", "--rm", "--log-uri", "file://" + log}, options...)
	r.ctr(append(append(args, "docker.io/library/"+image+":"+r.version, name), command...)...)
	return string(must(os.ReadFile(log))(r.t))
}

// stop ends a container, and waits for its end. After the first SIGTERM, HyperShift's sidecars go on
// for 20 s.
func (r *runtimes) stop(name string) {
	r.t.Helper()
	for range 2 {
		_, _ = r.try("task", "kill", "--signal", "SIGTERM", name) // it may have ended by itself
	}
	eventually(r.t, name+" to end", func() error {
		out, err := r.try("task", "rm", name)
		return withOutput(err, out)
	})
	r.ctr("container", "rm", name)
}

// network is pods' networks, on a bridge.
type network struct {
	t      *testing.T
	prefix string
	n      int
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, prefix: fmt.Sprint("konnectivity-", os.Getpid(), "-")}
	n.add("bridge")
	command(t, "ip", "-n", n.prefix+"bridge", "link", "add", "br0", "type", "bridge")
	command(t, "ip", "-n", n.prefix+"bridge", "link", "set", "br0", "up")
	return n
}

func (n *network) add(name string) {
	n.t.Helper()
	command(n.t, "ip", "netns", "add", n.prefix+name)
	n.t.Cleanup(func() { command(n.t, "ip", "netns", "delete", n.prefix+name) })
	command(n.t, "ip", "-n", n.prefix+name, "link", "set", "lo", "up")
}

// pod is a network with an address on the bridge.
func (n *network) pod(name string) (pod, address string) {
	n.t.Helper()
	n.add(name)
	n.n++
	pod, address = n.prefix+name, fmt.Sprint("192.0.2.", n.n)
	port := fmt.Sprint("veth", n.n)
	command(n.t, "ip", "-n", n.prefix+"bridge", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pod)
	command(n.t, "ip", "-n", n.prefix+"bridge", "link", "set", port, "master", "br0", "up")
	command(n.t, "ip", "-n", pod, "address", "add", address+"/24", "dev", "eth0")
	command(n.t, "ip", "-n", pod, "link", "set", "eth0", "up")
	return pod, address
}

// in runs a command in a pod's network.
func in(t *testing.T, pod, name string, args ...string) error {
	t.Helper()
	out, err := try(t, "ip", append([]string{"netns", "exec", pod, name}, args...)...)
	return withOutput(err, out)
}

func TestLeanImage(t *testing.T) {
	t.Parallel()
	r := newRuntime(t)
	for i, path := range []string{"/proxy-server", "/proxy-agent", "/usr/bin/konnectivity", "/usr/bin/konnectivity-server",
		"/usr/bin/konnectivity-agent", "/usr/bin/konnectivity-socks5-proxy", "/usr/bin/konnectivity-https-proxy"} {
		out := r.says("konnectivity", fmt.Sprint("v", i), path, "--version")
		contains(t, out, " version "+r.version+" ", "%s --version", path)
	}
	contains(t, r.says("konnectivity-agent", "agent", "/proxy-agent", "--version"),
		"konnectivity-agent version "+r.version+" ", "the agent's image")
}

func TestSkopeoReadsImages(t *testing.T) {
	for name, entrypoint := range map[string]string{"konnectivity": "/usr/bin/konnectivity", "konnectivity-agent": "/proxy-agent", "konnectivity-hypershift": "/usr/bin/konnectivity"} {
		var image struct {
			Labels map[string]string
			Env    []string
		}
		var config v1.ConfigFile
		decode(t, command(t, "skopeo", "inspect", "--config", "oci-archive:"+artefact(t, name+"_*_oci.tar")), &config)
		holds(t, slices.Equal(config.Config.Entrypoint, []string{entrypoint}) && config.Config.User == "65532:65532",
			"%s starts %q as %q", name, config.Config.Entrypoint, config.Config.User)
		decode(t, command(t, "skopeo", "inspect", "oci-archive:"+artefact(t, name+"_*_oci.tar")), &image)
		holds(t, image.Labels["org.opencontainers.image.version"] != "",
			"%s has no version: %v", name, image)
		command(t, "skopeo", "inspect", "--raw", "oci:"+artefact(t, filepath.Join("oci", name)))
	}
}

// An image has the licences of all its content, and names the place of the source that
// one of them asks for.
func TestImagesHoldLicences(t *testing.T) {
	for name, want := range map[string][]string{
		"konnectivity":            {"usr/share/doc/konnectivity/LICENSE", "usr/share/doc/konnectivity/" + thirdParty},
		"konnectivity-agent":      {"usr/share/doc/konnectivity/LICENSE", "usr/share/doc/konnectivity/" + thirdParty},
		"konnectivity-hypershift": {"usr/share/doc/konnectivity/" + thirdParty, "usr/share/doc/busybox-static/copyright", "usr/share/doc/busybox-static/source"},
	} {
		files := imageFiles(t, artefact(t, filepath.Join("oci", name)))
		for _, file := range want {
			holds(t, len(files[file]) != 0, "%s has no %s", name, file)
		}
		if source := files["usr/share/doc/busybox-static/source"]; name == "konnectivity-hypershift" && !strings.Contains(source, "source: busybox (= ") {
			t.Errorf("%s: %s", name, source)
		}
	}
}

// imageFiles is what the one image of a layout holds, programs left out.
func imageFiles(t *testing.T, path string) map[string]string {
	t.Helper()
	content := openImage(t, path)
	defer content.Close()
	return tarFiles(t, content)
}

// imageFile is the text of one file of the image.
func imageFile(t *testing.T, path, name string) []byte {
	t.Helper()
	content := openImage(t, path)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		requires(t, err == nil, "%s in %s: %v", name, path, err)
		if h.Name == name {
			return must(io.ReadAll(r))(t)
		}
	}
}

// openImage is the one image of a layout, as a tar.
func openImage(t *testing.T, path string) io.ReadCloser {
	t.Helper()
	outer := must(layout.ImageIndexFromPath(path))(t)
	indexes, err := partial.FindIndexes(outer, func(v1.Descriptor) bool { return true })
	requires(t, err == nil && len(indexes) == 1, "%d indexes: %v", len(indexes), err)
	images, err := partial.FindImages(indexes[0], func(v1.Descriptor) bool { return true })
	requires(t, err == nil && len(images) == 1, "%d images: %v", len(images), err)
	return mutate.Extract(images[0])
}

// tarFiles is what a tar holds; of programs, that they are there, and of links,
// where they lead.
func tarFiles(t *testing.T, content io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		noError(t, err)
		text := must(io.ReadAll(r))(t)
		if strings.Contains(h.Name, "bin/") && len(text) > 0 {
			text = []byte("a program")
		}
		files[strings.TrimSuffix(h.Name, "/")] = string(text) + h.Linkname
	}
}

// A release for systems that there are no images for is one without images.
func TestNoImageWithoutLinux(t *testing.T) {
	r := &release{root: "..", out: t.TempDir(), work: t.TempDir(), version: "v1.0.0", systems: []system{{"darwin", "arm64"}}}
	noError(t, r.images())
	there(t, filepath.Join(r.out, "oci"), false)
}

// What `make image` builds by the Dockerfile is the release's lean image.
func TestImageFilesAreTheRelease(t *testing.T) {
	want := imageFiles(t, artefact(t, filepath.Join("oci", "konnectivity")))
	s := system{"linux", runtime.GOARCH}
	r := &release{root: "..", work: t.TempDir(), systems: []system{s}, files: filepath.Join(t.TempDir(), "image.tar")}
	noError(t, os.MkdirAll(r.bin(s), 0o755))
	archive := artefact(t, "konnectivity_*_"+s.String()+".tar.gz")
	for _, p := range programs {
		command(t, "tar", "-xzf", archive, "-C", r.bin(s), "--strip-components=1", strings.TrimSuffix(filepath.Base(archive), ".tar.gz")+"/"+p.name)
	}
	noError(t, errors.Join(r.licences(), r.imageFiles()))
	tar := must(os.Open(r.files))(t)
	defer tar.Close()
	if got := tarFiles(t, tar); !maps.Equal(got, want) {
		t.Errorf("the Dockerfile's image has\n%q, the release's\n%q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
