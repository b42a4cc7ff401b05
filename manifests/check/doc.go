// Package check tests the manifests: every kustomization builds, every object
// decodes strictly, names agree across files, and every container starts with
// its very arguments. It is a module of its own, so that kustomize and the
// types of operators stay out of the product's.
package check
