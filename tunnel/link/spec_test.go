package link

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// The code is compared with the specification, so that nothing is on the wire that a
// peer's author could not know.

// specification is docs/link-protocol.md.
func specification(t *testing.T) string {
	t.Helper()
	text := testutil.Must(os.ReadFile("../../docs/link-protocol.md"))(t)
	return string(text)
}

// rowsOf are the cells of the table under a heading line of the specification.
func rowsOf(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	_, table, found := strings.Cut(specification(t), heading+"\n")
	testutil.Requires(t, found, "there is no table %q", heading)
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(cells[0], "--") {
			rows = append(rows, cells)
		}
	}
	return rows
}

// kindsOf are the keys of a message's fields, and what their values are.
func kindsOf(fields func(*coder)) map[string]string {
	c := coder{encodes: true, kinds: map[uint16]string{}}
	fields(&c)
	kinds := map[string]string{}
	for key, kind := range c.kinds {
		kinds[fmt.Sprint(key)] = kind
	}
	return kinds
}

var kindInText = regexp.MustCompile(`\bu(?:8|16|32|64)\b|\b\d+ bytes\b|\bbytes\b`)

// Every field of a message has a row in the specification, with its key and type, and
// every row is a field.
func TestFieldsAreThoseOfTheSpecification(t *testing.T) {
	specified := map[string]map[string]string{}
	frame := ""
	for _, row := range rowsOf(t, "| frame | key | value |") {
		if row[0] != "" {
			frame = strings.TrimSuffix(row[0], ", INFO")
		}
		if specified[frame] == nil {
			specified[frame] = map[string]string{}
		}
		for key := range strings.SplitSeq(row[1], ", ") {
			kind := kindInText.FindString(strings.ReplaceAll(row[2], "at most 512 bytes", ""))
			if kind == "" {
				kind = "text"
			}
			specified[frame][key] = kind
		}
	}
	for frame, table := range map[string]map[string]string{
		"HELLO": kindsOf(new(Hello).fields), "OPENED": kindsOf(new(openedMsg).fields),
		"OPEN": kindsOf((&openMsg{resume: new(tunnel.Resume)}).fields),
	} {
		testutil.Equal(t, fmt.Sprint(table), fmt.Sprint(specified[frame]), "the fields of %s", frame)
		delete(specified, frame)
	}
	testutil.Equal(t, len(specified), 0, "only in the specification: %v", specified)
}

// constants are the constants of the package whose names begin with prefix: their
// values, as written, by the rest of the name.
func constants(t *testing.T, prefix string) map[string]string {
	t.Helper()
	files := testutil.Must(filepath.Glob("*.go"))(t)
	found := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := testutil.Must(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		for _, decl := range file.Decls {
			if decl, ok := decl.(*ast.GenDecl); ok && decl.Tok == token.CONST {
				addConstants(found, decl, prefix)
			}
		}
	}
	testutil.Requires(t, len(found) != 0, "no constant begins with %q", prefix)
	return found
}

// addConstants adds those of one declaration.
func addConstants(found map[string]string, decl *ast.GenDecl, prefix string) {
	for i, spec := range decl.Specs {
		value := spec.(*ast.ValueSpec)
		for j, name := range value.Names {
			rest, ok := strings.CutPrefix(name.Name, prefix)
			if !ok {
				continue
			}
			found[rest] = fmt.Sprint(i) // of an iota
			if len(value.Values) > j {
				if lit, ok := value.Values[j].(*ast.BasicLit); ok {
					found[rest] = strings.Trim(lit.Value, `"`)
				}
			}
		}
	}
}

var flagInText = regexp.MustCompile(`(?:^|; )(\d+)(?: = |: )`)

// Every type of frame, and every flag of one, is in the specification with its number;
// the least payload is that of its columns.
func TestFramesAreThoseOfTheSpecification(t *testing.T) {
	types, flags := map[string]string{}, map[string]string{}
	for _, row := range rowsOf(t, "| type | name | stream | payload | flags |") {
		types[row[1]] = row[0]
		for _, flag := range flagInText.FindAllStringSubmatch(row[4], -1) {
			flags[row[1]+" "+flag[1]] = ""
		}
		least := 0
		for bits := range map[string]int{"u64": 8, "u16": 2} {
			if strings.HasPrefix(row[3], bits) {
				least = map[string]int{"u64": 8, "u16": 2}[bits]
			}
		}
		var number int
		_, _ = fmt.Sscan(row[0], &number)
		if kind := frameKinds[number]; kind.least != least || kind.ofStream != (row[2] != "0") {
			t.Errorf("%s is %+v here, and %v in the specification", row[1], kind, row)
		}
	}
	here := map[string]string{}
	for name, number := range constants(t, "frame") {
		if !slices.Contains([]string{"Writer", "Reader"}, name) {
			here[strings.ToUpper(name)] = number
		}
	}
	testutil.Holds(t, maps.Equal(here, types) && len(frameKinds) == len(types),
		"the frames are %v here, and in the specification %v", here, types)
	for name, value := range constants(t, "flag") {
		frame := ""
		for of := range types {
			if strings.HasPrefix(strings.ToUpper(name), of) && len(of) > len(frame) {
				frame = of
			}
		}
		_, told := flags[frame+" "+value]
		testutil.Holds(t, frame != "" && told, "the specification has no flag%s = %s of %q", name, value, frame)
		delete(flags, frame+" "+value)
	}
	testutil.Equal(t, len(flags), 0, "flags only in the specification: %v", flags)
}

// Every code of GOAWAY, every feature and every role is named in the specification, by
// its number where it has one, and so is the protocol itself.
func TestNamesAreThoseOfTheSpecification(t *testing.T) {
	spec := strings.Join(strings.Fields(specification(t)), " ")
	_, goAway, _ := strings.Cut(spec, "GOAWAY with code 0 ")
	goAway, _, _ = strings.Cut(goAway, " internal error.")
	for name, number := range constants(t, "GoAway") {
		testutil.Holds(t, name == "Drain" || regexp.MustCompile(`\b`+number+` ?[a-z]*$|\b`+number+` [a-z]`).MatchString(goAway),
			"§6 has no code %s, %s", number, name)
	}
	for name, text := range constants(t, "Feature") {
		testutil.Contains(t, spec, "The feature is named `"+text+"`", "the section of %s", name)
	}
	for name, number := range constants(t, "Role") {
		testutil.Contains(t, spec, number+" "+strings.ToLower(name), "HELLO's role %s, %s", number, name)
	}
	testutil.Contains(t, spec, "`"+ALPN+"`", "the specification")
}

// If a key occurs twice, the last one counts (§2), whatever the first one is.
func TestTheLastOfAKeyCounts(t *testing.T) {
	b := appendField(nil, 3, []byte("of a wrong size"))
	b = appendField(b, 2, "first:1")
	b = appendField(b, 3, []byte{7: 9})
	b = appendField(b, 2, "last:1")
	var m openMsg
	testutil.NoError(t, m.decode(b))
	testutil.Equal(t, m.address, "last:1", "the address")
	testutil.Equal(t, m.credit, 9, "the credit")
	testutil.Fails(t, m.decode(appendField(b, 3, []byte{9})), "a last one of a wrong size")
}
