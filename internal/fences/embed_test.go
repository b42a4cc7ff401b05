package fences

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"
)

// A struct that embeds a connection and is a tunnel.Conn itself has every method
// that it does not name go past it, also those that Conn gets one day. That is
// how read-ahead was skipped and fast paths were lost; tunnel.With replaces a
// part instead.
func TestConnsEmbedNoConns(t *testing.T) {
	for _, fault := range embedFaults(readSources(t, root)) {
		t.Error(fault)
	}
}

// shape is what a type of a package declares.
type shape struct {
	embeds  []embedded
	methods map[string]bool
	is      *ast.TypeSpec
	in      source
}

// embedded is a type by the import path of its package and its name.
type embedded struct{ pkg, name string }

func (e embedded) String() string { return e.pkg + "." + e.name }

// connMethods are what only a tunnel.Conn has: a net.Conn that declares them
// means to be one.
var connMethods = []string{"Reset", "In", "Out"}

// netConns are connections of the standard library.
var netConns = []embedded{
	{"net", "Conn"}, {"net", "TCPConn"}, {"net", "UnixConn"}, {"crypto/tls", "Conn"},
}

var tunnelConn = embedded{module + "/tunnel", "Conn"}

// embedFaults are the structs of sources that are a tunnel.Conn, or look like
// one, by embedding a connection.
func embedFaults(sources []source) []string {
	shapes := shapesOf(sources)
	var faults []string
	for name, s := range shapes {
		if _, ok := s.is.Type.(*ast.StructType); !ok {
			continue
		}
		for _, e := range s.embeds {
			if shapes.isConn(e) || shapes.isNetConn(e) && s.declaresConn() {
				faults = append(faults, fmt.Sprintf("%s: %s embeds %s: name the field, and use tunnel.With to replace a part of a Conn", s.in.at(s.is), name, e))
			}
		}
	}
	slices.Sort(faults)
	return faults
}

type shapes map[embedded]*shape

// isConn says whether e is a tunnel.Conn.
func (s shapes) isConn(e embedded) bool {
	if e == tunnelConn {
		return true
	}
	is, ok := s[e]
	return ok && (is.declaresConn() || slices.ContainsFunc(is.embeds, s.isConn))
}

// isNetConn says whether e is a connection of the standard library, or embeds
// one.
func (s shapes) isNetConn(e embedded) bool {
	if slices.Contains(netConns, e) {
		return true
	}
	is, ok := s[e]
	return ok && slices.ContainsFunc(is.embeds, s.isNetConn)
}

func (s *shape) declaresConn() bool {
	return !slices.ContainsFunc(connMethods, func(name string) bool { return !s.methods[name] })
}

// shapesOf collects the types of all packages.
func shapesOf(sources []source) shapes {
	all := shapes{}
	for _, s := range sources {
		pkg := module
		if s.folder != "" {
			pkg += "/" + s.folder
		}
		at := func(name string) *shape {
			key := embedded{pkg, name}
			if all[key] == nil {
				all[key] = &shape{methods: map[string]bool{}, is: &ast.TypeSpec{}, in: s}
			}
			return all[key]
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				is := at(n.Name.Name)
				is.is, is.in, is.embeds = n, s, embedsOf(s, pkg, n.Type)
			case *ast.FuncDecl:
				if n.Recv != nil {
					at(nameOf(s, pkg, n.Recv.List[0].Type).name).methods[n.Name.Name] = true
				}
			}
			return true
		})
	}
	return all
}

// embedsOf are the types that a struct or an interface embeds.
func embedsOf(s source, pkg string, t ast.Expr) (all []embedded) {
	var fields *ast.FieldList
	switch t := t.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return nil
	}
	for _, f := range fields.List {
		if len(f.Names) == 0 {
			all = append(all, nameOf(s, pkg, f.Type))
		}
	}
	return all
}

// nameOf is the type that an expression names, without pointers and parameters.
func nameOf(s source, pkg string, t ast.Expr) embedded {
	switch t := t.(type) {
	case *ast.StarExpr:
		return nameOf(s, pkg, t.X)
	case *ast.IndexExpr:
		return nameOf(s, pkg, t.X)
	case *ast.IndexListExpr:
		return nameOf(s, pkg, t.X)
	case *ast.Ident:
		return embedded{pkg, t.Name}
	case *ast.SelectorExpr:
		if x, ok := t.X.(*ast.Ident); ok {
			return embedded{s.imports[x.Name], t.Sel.Name}
		}
	}
	return embedded{}
}
