package diagnose

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/admin"
	"konnectivity/internal/pki"
	"konnectivity/server/tenant"
)

// Server is the server whose view of a tenant is checked too.
type Server struct {
	Admin string // address of the admin port, as for status.Client; "" skips the check
	Login status.Login
}

// Tenant checks the folder of a tenant, part by part, and the server's view of the
// tenant.
func Tenant(ctx context.Context, folder string, server Server, now time.Time) []Finding {
	name := filepath.Base(folder)
	if whole, err := filepath.Abs(folder); err == nil {
		name = filepath.Base(whole)
	}
	c := newTenantChecker("folder", name, now)
	t, err := tenant.Load(c.name, folder)
	c.walk(t, err, func() []*tenant.Spec { return tenant.Beside(folder, c.name) })
	c.checkModes(folder)
	c.checkOnline(ctx, server, digestOf(t, err))
	return c.findings
}

// tenantChecker checks one tenant.
type tenantChecker struct {
	report
	what, name string // "folder" or "Secret", and the tenant's name
	now        time.Time
}

func newTenantChecker(what, name string, now time.Time) *tenantChecker {
	return &tenantChecker{report: report{group: "tenant " + name}, what: what, name: name, now: now}
}

// walk checks a tenant as a whole, then each part. others returns the tenants that
// must not share its names.
func (c *tenantChecker) walk(t *tenant.Spec, err error, others func() []*tenant.Spec) {
	var field *tenant.FieldError
	switch {
	case errors.As(err, &field) && errors.Is(err, fs.ErrNotExist):
		c.fail(c.what, field.File+" is not there", "`konnectivity tenants make` makes the files that every tenant has; put others that tenant.yaml names beside them.")
	case errors.As(err, &field):
		c.fail(c.what, field.Error(), "The server refuses this tenant's peers, or serves it as it was before, until that is right.")
	case errors.Is(err, fs.ErrNotExist):
		c.fail(c.what, "it does not exist", "Name the folder of one tenant, below the server's --tenants-dir.")
	case err != nil:
		c.fail(c.what, err.Error(), "A tenant's name is that of its "+c.what+".")
	default:
		c.ok(c.what, reachedBy(t))
		beside := others()
		c.checkOthers(t, beside)
		c.checkCAs(t)
		c.checkServer(t)
		c.checkReader(t, beside)
	}
}

// reachedBy lists the names and ports of a tenant.
func reachedBy(t *tenant.Spec) string {
	var ways []string
	if len(t.ServerNames) > 0 {
		ways = append(ways, "asked for as "+strings.Join(t.ServerNames, ", "))
	}
	for _, p := range t.Addresses() {
		ways = append(ways, p.String())
	}
	return strings.Join(ways, "; ")
}

// checkOthers checks that no other tenant has one of the names.
func (c *tenantChecker) checkOthers(t *tenant.Spec, others []*tenant.Spec) {
	const step = "names"
	for _, other := range others {
		if err := t.Conflict(other); err != nil {
			c.fail(step, err.Error(), "The tenant that the server read first keeps it. Take it out of one of them.")
			return
		}
	}
	c.ok(step, "no other tenant beside it has one of them")
}

// checkCAs checks the CAs of agents and of clients.
func (c *tenantChecker) checkCAs(t *tenant.Spec) {
	if t.Agents == nil {
		c.ok("CA of agents", "none; they have tokens")
	} else {
		c.checkCA("CA of agents", tenant.AgentsCAFile, t.Agents)
	}
	c.checkCA("CA of clients", tenant.ClientsCAFile, t.Clients)
	c.checkLists(t)
}

// checkLists checks the revocation lists, if there are any.
func (c *tenantChecker) checkLists(t *tenant.Spec) {
	const step = "revocation lists"
	next := t.ListsUntil()
	switch {
	case t.Clients.Lists == nil:
		c.ok(step, "none: there is no "+tenant.ListsFile)
	case next.IsZero():
		c.ok(step, "in "+tenant.ListsFile+", without a date for the next")
	case next.Before(c.now):
		c.warn(step, fmt.Sprintf("%s is out of date since %s: what was revoked since is not known", tenant.ListsFile, date(next)), "Have the CA publish a list (openssl ca -gencrl), and replace the file.")
	default:
		c.ok(step, "in "+tenant.ListsFile+until(next))
	}
}

func (c *tenantChecker) checkCA(step, file string, cas *tenant.CAs) {
	var valid []*x509.Certificate
	all := cas.Certs.Parse()
	for _, ca := range all {
		what := file
		if len(all) > 1 {
			what = pki.Name(ca) + " of " + file
		}
		cause, hint := invalidTime(what, ca, c.now, "Issue a new CA and certificates.")
		switch {
		case cause == "" && !ca.IsCA:
			c.warn(step, fmt.Sprintf("%s: %s is no CA's certificate", file, pki.Name(ca)), "Only that one certificate is accepted by it. Give the CA that issued it.")
			valid = append(valid, ca)
		case cause == "":
			valid = append(valid, ca)
		case len(all) == 1:
			c.fail(step, cause, hint)
			return
		default:
			c.warn(step, cause, "Take it out of the file, if nobody needs it.")
		}
	}
	if len(valid) == 0 {
		c.fail(step, file+": no certificate in it is valid now", "Issue a new CA and certificates.")
		return
	}
	found := dated(valid)
	if len(cas.Only) > 0 {
		found += ", for certificates of " + strings.Join(cas.Only, ", ")
	}
	c.ok(step, found)
}

// checkServer checks the certificate that the server shows to the tenant's peers.
func (c *tenantChecker) checkServer(t *tenant.Spec) {
	const step = "certificate of the server"
	if t.Cert == nil {
		c.ok(step, "none of the tenant's own: that of the server's flags has to have its names")
		return
	}
	leaf := t.Cert.Leaf
	cause, hint := invalidTime(tenant.CertFile, leaf, c.now, "Renew it; the server takes the new files without a restart.")
	switch {
	case cause != "":
		c.fail(step, cause, hint)
		return
	case len(leaf.ExtKeyUsage) > 0 && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny):
		c.fail(step, tenant.CertFile+" is not for servers: its extended key usage lacks serverAuth", "Issue one with that usage.")
		return
	}
	if err := (pki.RoleRule{Want: pki.RoleServer}).Check(leaf); err != nil {
		c.fail(step, err.Error(), "Agents and sidecars refuse it. Use one such as server.crt of `konnectivity tenants make`.")
		return
	}
	if left, soon := expiresSoon(leaf, c.now); soon {
		c.warn(step, fmt.Sprintf("%s expires in %s", tenant.CertFile, left), "Find out why it was not renewed in time.")
	} else {
		c.ok(step, pki.Name(leaf)+until(leaf.NotAfter))
	}
	if !c.issued(t.Cert, t.Clients) && !c.issued(t.Cert, t.Agents) {
		c.warn(step, "it was issued by neither of the tenant's CAs", "That is right if the tenant's agents and clients trust its CA by other means, such as their --ca-cert.")
	}
}

// checkReader says whether a token shows the tenant on the server's admin port.
func (c *tenantChecker) checkReader(t *tenant.Spec, others []*tenant.Spec) {
	const step = "reader"
	same := slices.IndexFunc(others, func(o *tenant.Spec) bool { return o.Name != t.Name && o.Reader == t.Reader })
	switch {
	case t.Reader == (admin.TokenDigest{}):
		c.ok(step, "none: there is no "+tenant.ReaderFile)
	case same >= 0:
		c.fail(step, fmt.Sprintf("the token of %s is that of the tenant %q, too, and so shows nothing", tenant.ReaderFile, others[same].Name),
			"Give each tenant its own: `openssl rand -hex 32` makes one.")
	default:
		c.ok(step, "whoever has the token of "+tenant.ReaderFile+" sees this tenant on the server's admin port")
	}
}

// issued reports whether one of the CAs issued cert.
func (c *tenantChecker) issued(cert *tls.Certificate, by *tenant.CAs) bool {
	if by == nil {
		return false
	}
	opts := x509.VerifyOptions{Roots: by.Pool(), Intermediates: x509.NewCertPool(), CurrentTime: c.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, der := range cert.Certificate[1:] {
		if more, err := x509.ParseCertificate(der); err == nil {
			opts.Intermediates.AddCert(more)
		}
	}
	_, err := cert.Leaf.Verify(opts)
	return err == nil
}

// checkModes checks the permissions of the key, of the token, and of the files that
// decide who gets in.
func (c *tenantChecker) checkModes(folder string) {
	if runtime.GOOS == "windows" {
		return // modes mean nothing there
	}
	for _, name := range []string{
		".", tenant.AgentsCAFile, tenant.ClientsCAFile, tenant.ListsFile,
		tenant.SettingsFile, tenant.CertFile, tenant.KeyFile, tenant.ReaderFile,
	} {
		path := filepath.Join(folder, name)
		info, err := os.Stat(path)
		if err != nil {
			continue // reported before, where the file is required
		}
		mode := info.Mode().Perm()
		switch {
		case mode&0o002 != 0 && info.Mode()&fs.ModeSticky == 0:
			c.fail("modes", fmt.Sprintf("everybody may write %s (mode %04o)", path, mode), "Whoever writes there decides who gets into this cluster: chmod o-w.")
		case name == tenant.KeyFile && mode&0o007 != 0:
			c.warn("modes", fmt.Sprintf("everybody may read %s (mode %04o)", path, mode), "Whoever has it can pass for the server: chmod 600, or defaultMode: 0400 of a volume.")
		case name == tenant.ReaderFile && mode&0o007 != 0:
			c.warn("modes", fmt.Sprintf("everybody may read %s (mode %04o)", path, mode), "Whoever has it sees this tenant on the server's admin port: chmod 600, or defaultMode: 0400 of a volume.")
		}
	}
}

// digestOf is the digest of a tenant that can be served; else "".
func digestOf(t *tenant.Spec, err error) string {
	if err != nil {
		return ""
	}
	return t.Digest()
}

// checkOnline checks the server's view of the tenant, if a server is given. digest is that of
// the files that were checked; "" if they cannot be served.
func (c *tenantChecker) checkOnline(ctx context.Context, server Server, digest string) {
	if server.Admin == "" {
		return
	}
	const step = "server"
	client, err := status.NewClient(server.Login)
	if err != nil {
		c.fail(step, err.Error(), "Give the file of the operator's token, or the tenant's "+tenant.ReaderFile+"; or certificate files that exist.")
		return
	}
	defer client.Close()
	t, err := client.Tenant(ctx, server.Admin, c.name)
	switch {
	case err != nil:
		c.fail(step, server.Admin+": "+err.Error(), "Give the admin port of a server that many clusters share.")
	case t == nil:
		c.fail(step, "it has no tenant "+c.name, "Look at what its --tenants-dir names, or at the labels of the Secrets in its --tenants-namespace: it takes up a new one within seconds.")
	case t.State == tenant.StateBroken:
		c.fail(step, "it refuses the tenant's peers: "+t.Error, "Mend that; the server takes it up within 6 s.")
	case t.State == tenant.StateStale:
		c.fail(step, "it serves the tenant as it was before: "+t.Error, "Mend that; the server takes it up within 6 s.")
	case t.Digest != "" && digest != "" && t.Digest != digest: // older servers tell none
		c.fail(step, "it serves other files than these: it has not read their latest change, or has the tenant from elsewhere",
			"It reads a change within 6 s: check again then. If this stays, look at what its --tenants-dir or --tenants-namespace names.")
	case !t.Ready:
		c.fail(step, "it cannot reach the cluster: "+t.Reason, "If agents are missing, their logs say why they are not connected.")
	default:
		c.ok(step, fmt.Sprintf("%s and %s are connected", status.Plural(t.Agents, "agent"), status.Plural(t.Clients, "client")))
	}
}
