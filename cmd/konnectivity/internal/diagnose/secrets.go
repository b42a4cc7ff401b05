package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/yaml"

	"konnectivity/internal/kubeapi"
	"konnectivity/server/tenant"
)

// maxManifest bounds a manifest, which may hold thousands of tenants, in bytes.
const maxManifest = 256 << 20

// TenantSecrets is Tenant for the Secrets of tenants in a manifest, which may be a
// List that kubectl prints. Other objects are skipped.
func TenantSecrets(ctx context.Context, manifest io.Reader, server Server, now time.Time) ([]Finding, error) {
	secrets, err := secretsIn(manifest)
	if err != nil {
		return nil, err
	}
	loaded, errs := make([]*tenant.Spec, len(secrets)), make([]error, len(secrets))
	for i, s := range secrets {
		loaded[i], errs[i] = tenant.LoadSecret(s.Name, s.Data)
	}
	var findings []Finding
	for i, s := range secrets {
		c := newTenantChecker("Secret", strings.TrimPrefix(s.Name, tenant.SecretPrefix), now)
		c.walk(loaded[i], errs[i], func() (others []*tenant.Spec) {
			for j, other := range loaded {
				if errs[j] == nil && secrets[j].Name != s.Name {
					others = append(others, other)
				}
			}
			return others
		})
		if _, labelled := s.Labels[tenant.SecretLabel]; !labelled {
			c.warn("label", "it has no label "+tenant.SecretLabel, "A server with --tenants-namespace does not see it, unless its --tenants-selector says otherwise.")
		}
		c.checkOnline(ctx, server, digestOf(loaded[i], errs[i]))
		findings = append(findings, c.findings...)
	}
	return findings, nil
}

// secretsIn returns the Secrets of tenants in a manifest, at least one, with their
// stringData merged into data.
func secretsIn(manifest io.Reader) ([]kubeapi.Secret, error) {
	var all []kubeapi.Secret
	documents := yaml.NewYAMLOrJSONDecoder(io.LimitReader(manifest, maxManifest), 4096)
	for {
		var document json.RawMessage
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			all, err = addSecrets(all, document)
		}
		if err != nil {
			return nil, fmt.Errorf("it is no manifest: %w", err)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no tenant's Secret in it: one has the label %s or the key %s", tenant.SecretLabel, tenant.SettingsFile)
	}
	return all, nil
}

// addSecrets appends the Secrets of tenants in a document, which may be a List.
func addSecrets(all []kubeapi.Secret, document json.RawMessage) ([]kubeapi.Secret, error) {
	var object struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(document, &object); err != nil {
		return nil, err
	}
	for _, item := range object.Items {
		var err error
		if all, err = addSecrets(all, item); err != nil {
			return nil, err
		}
	}
	if object.Kind != "Secret" {
		return all, nil
	}
	var s kubeapi.Secret
	if err := json.Unmarshal(document, &s); err != nil {
		return nil, err
	}
	if s.Data == nil {
		s.Data = make(map[string][]byte)
	}
	for key, text := range s.StringData { // which wins, as in the API
		s.Data[key] = []byte(text)
	}
	_, labelled := s.Labels[tenant.SecretLabel]
	if _, told := s.Data[tenant.SettingsFile]; labelled || told {
		all = append(all, s)
	}
	return all, nil
}
