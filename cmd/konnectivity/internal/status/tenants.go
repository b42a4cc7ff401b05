package status

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
)

const (
	// pageSize is the number of items of a request: the most that the API allows.
	pageSize = 1000

	// maxPages bounds the pages of one list. A server has at most 20,000 tenants.
	maxPages = 32
)

// Tenants is a view of a server's tenants.
type Tenants struct {
	Sort   string // as in the API
	Filter string
	Limit  int // 0 means all
	JSON   bool
	Login  Login
}

// Show prints the tenants of the server at address.
func (v *Tenants) Show(ctx context.Context, out io.Writer, address string) error {
	client, err := NewClient(v.Login)
	if err != nil {
		return err
	}
	defer client.Close()
	page, err := client.tenants(ctx, address, v)
	answer := tenantsAnswer{Page: page}
	if err != nil {
		answer.Error = err.Error()
		err = fmt.Errorf("%s: %w", address, err)
	}
	switch {
	case v.JSON:
		return cmp.Or(cli.PrintJSON(out, answer), err)
	case err == nil:
		_, err = out.Write(render(out, func(p *printer) { p.tenants(page) }))
	}
	return err
}

// tenantsAnswer is what Show prints as JSON, also where the server does not answer, as with a
// Report.
type tenantsAnswer struct {
	Error string `json:"error,omitempty"` // why there are no tenants, or not all
	admin.Page[admin.Tenant]
}

// tenants reads the tenants of v, page by page.
func (c *Client) tenants(ctx context.Context, address string, v *Tenants) (all admin.Page[admin.Tenant], err error) {
	all.Items = []admin.Tenant{}
	for range maxPages {
		limit := pageSize
		if v.Limit > 0 {
			limit = min(limit, v.Limit-len(all.Items))
		}
		var page admin.Page[admin.Tenant]
		q := url.Values{"sort": {v.Sort}, "filter": {v.Filter}, "limit": {strconv.Itoa(limit)}, "offset": {strconv.Itoa(len(all.Items))}}
		if err := c.get(ctx, address, "tenants", q, &page); err != nil {
			return all, err
		}
		all.Total, all.Matched, all.Items = page.Total, page.Matched, append(all.Items, page.Items...)
		if len(page.Items) == 0 || len(all.Items) >= page.Matched || v.Limit > 0 && len(all.Items) >= v.Limit {
			return all, nil
		}
	}
	return all, fmt.Errorf("%s: it tells of %d tenants, more than any server has", errForeign, all.Matched)
}

// Tenant returns one of a server's tenants; nil if there is none of that name.
func (c *Client) Tenant(ctx context.Context, address, name string) (*admin.Tenant, error) {
	return find(ctx, c, address, "tenants", url.Values{"tenant": {name}}, func(t admin.Tenant) bool { return t.Name == name })
}

func (p *printer) tenants(page admin.Page[admin.Tenant]) {
	rows := [][]string{{"TENANT", "ASKED FOR AS", "AGENTS", "CLIENTS", "CONNECTIONS", "UP", "DOWN", "TOTAL", "STATE"}}
	for _, t := range page.Items {
		rows = append(rows, []string{
			t.Name, Cut(strings.Join(slices.Concat(t.ServerNames, t.Listen), ", "), 48), fmt.Sprint(t.Agents), fmt.Sprint(t.Clients), fmt.Sprint(t.Connections.Open),
			Rate(t.Up), Rate(t.Down), Bytes(float64(t.UpBytes + t.DownBytes)), tenantState(t),
		})
	}
	p.table(rows, "TOTAL", "CLIENTS", "ASKED FOR AS", "UP", "DOWN", "CONNECTIONS", "AGENTS")
	more := ""
	if n := page.Matched - len(page.Items); n > 0 {
		more = fmt.Sprintf("; %d more match", n)
	}
	fmt.Fprintf(p.out, "\n  %s%d of %s%s%s\n", p.paint.Dim, len(page.Items), Plural(page.Total, "tenant"), more, p.paint.Off)
}

// tenantState is the problem of a tenant, or "ready".
func tenantState(t admin.Tenant) string {
	switch {
	case t.Error != "":
		return t.State + ": " + t.Error
	case !t.Ready:
		return "not ready: " + t.Reason
	case t.Connections.Stalled > 0:
		return fmt.Sprint(t.Connections.Stalled, " stalled")
	default:
		return "ready"
	}
}
