package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
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
	modules := map[string]cdx.Component{}
	var components []cdx.Component
	var dependencies []cdx.Dependency
	for _, p := range programs {
		component, needs, err := describe(r.binary(s, p.name), p, r.version)
		if err != nil {
			return nil, err
		}
		components = append(components, component)
		var refs []string
		for _, m := range needs {
			modules[m.BOMRef] = m
			refs = append(refs, m.BOMRef)
		}
		slices.Sort(refs)
		dependencies = append(dependencies, cdx.Dependency{Ref: component.BOMRef, Dependencies: &refs})
	}
	images, err := r.materialsOfImages(s)
	if err != nil {
		return nil, err
	}
	for _, image := range images {
		components = append(components, image.component)
		var refs []string
		for _, m := range image.holds {
			modules[m.BOMRef] = m
			refs = append(refs, m.BOMRef)
		}
		for _, p := range programs {
			refs = append(refs, p.name)
		}
		slices.Sort(refs)
		dependencies = append(dependencies, cdx.Dependency{Ref: image.component.BOMRef, Dependencies: &refs})
	}
	for _, m := range modules {
		components = append(components, m)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom, nil
}

// imageMaterials is an image and what it holds beside the programs.
type imageMaterials struct {
	component cdx.Component
	holds     []cdx.Component
}

func (r *release) materialsOfImages(s system) ([]imageMaterials, error) {
	if s.os != "linux" {
		return nil, nil
	}
	m, err := ownDependency(authorities)
	if err != nil {
		return nil, err
	}
	image := func(name string, holds ...cdx.Component) imageMaterials {
		return imageMaterials{cdx.Component{BOMRef: name + "-image", Type: cdx.ComponentTypeContainer, Name: name, Version: r.version}, holds}
	}
	cas := library(m.Path, m.Version, "")
	cas.Type, cas.Description = cdx.ComponentTypeData, "public CAs, of Mozilla's list"
	images := []imageMaterials{image("konnectivity", cas)}
	shell, err := r.shellOf(s)
	if shell != nil {
		images = append(images, image("konnectivity-hypershift", cas, shell.component()))
	}
	return images, err
}

// describe is a program, and the modules and standard library linked into it.
func describe(file string, p program, version string) (cdx.Component, []cdx.Component, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return cdx.Component{}, nil, err
	}
	sum, err := sumOf(file)
	if err != nil {
		return cdx.Component{}, nil, err
	}
	program := cdx.Component{
		BOMRef: p.name, Type: cdx.ComponentTypeApplication, Name: filepath.Base(file), Version: version, Description: p.summary,
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
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
