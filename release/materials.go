package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// materials writes, for each system, what its programs are made of: as Go's
// compiler has written it into them.
func (r *release) materials() error {
	for _, s := range r.systems {
		bom, err := r.materialsOf(s)
		if err != nil {
			return err
		}
		err = writeFile(r.file(s.String(), ".cdx.json"), func(w io.Writer) error {
			return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *release) materialsOf(s system) (*cdx.BOM, error) {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.time.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{BOMRef: "konnectivity-suite", Type: cdx.ComponentTypeApplication, Name: "konnectivity", Version: r.version},
	}
	all := bill{components: map[string]cdx.Component{}}
	var suite []cdx.Component
	for _, p := range programs {
		program, needs, err := describe(r.binary(s, p.name), p.name, p.summary, r.version)
		if err != nil {
			return nil, err
		}
		all.add(program, needs)
		suite = append(suite, program)
	}
	if s.os == "linux" {
		if err := r.addImages(&all, s, suite); err != nil {
			return nil, err
		}
	}
	components := slices.SortedFunc(maps.Values(all.components), func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom.Components, bom.Dependencies = &components, &all.dependencies
	return bom, nil
}

// bill is everything that there is, each thing once, and what needs what.
type bill struct {
	components   map[string]cdx.Component // by reference
	dependencies []cdx.Dependency
}

// add notes a thing, and all that it holds.
func (b *bill) add(c cdx.Component, holds []cdx.Component) {
	refs := []string{}
	for _, h := range holds {
		b.components[h.BOMRef] = h
		refs = append(refs, h.BOMRef)
	}
	slices.Sort(refs)
	b.components[c.BOMRef] = c
	b.dependencies = append(b.dependencies, cdx.Dependency{Ref: c.BOMRef, Dependencies: &refs})
}

// addImages adds the images for a system, which hold the suite's programs, too.
func (r *release) addImages(all *bill, s system, suite []cdx.Component) error {
	m := authority()
	cas := library(m.Path, m.Version, "")
	cas.Type, cas.Description = cdx.ComponentTypeData, "public CAs, of Mozilla's list"
	lean := append(slices.Clip(suite), cas)
	image := func(name string) cdx.Component {
		return cdx.Component{BOMRef: name + "-image", Type: cdx.ComponentTypeContainer, Name: name, Version: r.version}
	}
	all.add(image("konnectivity"), lean)
	agent := slices.IndexFunc(suite, func(c cdx.Component) bool { return c.BOMRef == "konnectivity-agent" })
	all.add(image("konnectivity-agent"), []cdx.Component{suite[agent], cas})
	shell := r.shells[s]
	if shell == nil {
		return nil
	}
	operator, needs, err := describe(r.binary(s, "hypershift"), "control-plane-operator", "Starts the suite's programs as HyperShift's pods ask for them", r.version)
	if err != nil {
		return err
	}
	all.add(operator, needs)
	all.add(image("konnectivity-hypershift"), append(lean, shell.component(), operator))
	return nil
}

// describe is a program, and the modules and standard library linked into it.
func describe(file, name, summary, version string) (cdx.Component, []cdx.Component, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return cdx.Component{}, nil, err
	}
	sum, err := sumOf(file)
	if err != nil {
		return cdx.Component{}, nil, err
	}
	program := cdx.Component{
		BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name + filepath.Ext(file), Version: version, Description: summary,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	modules := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, library(m.Path, m.Version, m.Sum))
	}
	return program, modules, nil
}

func library(path, version, sum string) cdx.Component {
	purl := fmt.Sprintf("pkg:golang/%s@%s", path, version)
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl, Scope: cdx.ScopeRequired}
	if sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go.sum", Value: sum}}
	}
	return c
}

func sumOf(file string) (string, error) {
	data, err := os.ReadFile(file)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), err
}
