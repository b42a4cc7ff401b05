package status

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"konnectivity/internal/cli"
	"konnectivity/internal/wait"
)

// UsualAdmin has the default admin ports of server and agent.
var UsualAdmin = []string{"127.0.0.1:8095", "127.0.0.1:8094"}

// View is a view of processes.
type View struct {
	Watch    bool // update in place
	Interval time.Duration
	JSON     bool
	Filter   string
	Limit    int  // of peers, connections and failures of each process
	Exactly  bool // do not fit Limit to the screen
	Login    Login

	// Services are [https://]HOST[:PORT], in place of addresses: every address of each is a
	// server, and the view is a Set.
	Services []string

	Patience time.Duration // bounds each request; 0 means adminTime
}

// Show prints the state of the processes at addresses, by default the usual ports of this
// machine.
func (v *View) Show(ctx context.Context, out io.Writer, addresses []string) error {
	client, err := NewClient(v.Login)
	if err != nil {
		return err
	}
	defer client.Close()
	client.http.Timeout = cmp.Or(v.Patience, adminTime)
	if v.Watch && !v.JSON {
		fmt.Fprint(out, "\x1b[2J")
	}
	for {
		if found, err := client.lookUp(ctx, v.Services); len(found) > 0 {
			addresses = found // servers come and go
		} else if err != nil && len(addresses) == 0 {
			return err
		}
		seen := v.look(ctx, client, addresses, SizeOf(out).Rows)
		if v.Watch && ctx.Err() != nil {
			return nil // the requests were interrupted
		}
		if err := v.print(out, seen); err != nil {
			return err
		}
		if !v.Watch {
			return seen.outcome()
		}
		if !wait.For(ctx, v.Interval) {
			return nil
		}
	}
}

// picture is one output of status.
type picture interface {
	print(*printer)
	outcome() error // errNoAnswer if a process is missing
}

// look asks the processes at addresses; rows is the height of the screen.
func (v *View) look(ctx context.Context, client *Client, addresses []string, rows int) picture {
	switch {
	case len(v.Services) > 0:
		return client.set(ctx, addresses, v.Filter, v.Limit)
	case len(addresses) == 0:
		return withoutRefused(client.reports(ctx, UsualAdmin, v.Filter, v.fitting(rows/len(UsualAdmin))))
	default:
		return client.reports(ctx, addresses, v.Filter, v.fitting(rows/len(addresses)))
	}
}

// fitting is the limit for a process with rows of the screen: unless --limit is given, its
// three lists fit.
func (v *View) fitting(rows int) int {
	if !v.Watch || rows == 0 || v.Exactly {
		return v.Limit
	}
	return min(v.Limit, max(minListed, (rows-linesBeside)/3))
}

const (
	linesBeside = 12 // lines of a report that are not items of lists
	minListed   = 2
)

// withoutRefused leaves out the reports of ports where nothing listens, unless those are all.
// A process that listens and does not answer is reported.
func withoutRefused(all reports) reports {
	var some reports
	for _, r := range all {
		if !r.refused {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		return all
	}
	return some
}

// errNoAnswer makes the exit status 1; the output names the processes.
var errNoAnswer = errors.New("not every process answers")

func (all reports) outcome() error {
	for _, r := range all {
		if r.Error != "" {
			return errNoAnswer
		}
	}
	return nil
}

func (all reports) print(p *printer) {
	for i, r := range all {
		if i > 0 {
			fmt.Fprintln(p.out)
		}
		p.report(r)
	}
}

func (v *View) print(out io.Writer, seen picture) error {
	switch {
	case v.JSON && v.Watch:
		return json.NewEncoder(out).Encode(seen)
	case v.JSON:
		return cli.PrintJSON(out, seen)
	}
	text := render(out, seen.print)
	if v.Watch {
		text = inPlace(text, SizeOf(out).Rows)
	}
	_, err := out.Write(text)
	return err
}

// render is what print prints for out, to be written at once.
func render(out io.Writer, print func(*printer)) []byte {
	var text bytes.Buffer
	print(&printer{out: &text, paint: PaintIf(IsTerminal(out)), columns: SizeOf(out).Columns})
	return text.Bytes()
}

// inPlace overwrites the previous output line by line, without clearing the screen first,
// which would flicker. It cuts text at rows, so that nothing scrolls.
func inPlace(text []byte, rows int) []byte {
	lines := bytes.SplitAfter(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	if rows > 0 && len(lines) > rows {
		lines = append(lines[:rows-1], []byte("… more than fits; --limit and --filter show less"))
	}
	out := bytes.ReplaceAll(bytes.Join(lines, nil), []byte("\n"), []byte("\x1b[K\n"))
	return append(append([]byte("\x1b[H"), out...), "\x1b[K\x1b[J"...)
}
