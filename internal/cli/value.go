package cli

import "github.com/spf13/pflag"

// value is a flag whose text is parsed when it is given, so that a wrong one is
// refused like any other wrong flag.
type value[T any] struct {
	to    *T
	parse func(string) (T, error)
	kind  string
	text  string
}

// String implements pflag.Value.
func (v *value[T]) String() string { return v.text }

// Type implements pflag.Value; help shows it.
func (v *value[T]) Type() string { return v.kind }

// Set implements pflag.Value.
func (v *value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.to, v.text = parsed, text
	}
	return err
}

// Var defines a flag that parse turns into *to. kind names its values in help. initial
// is the default, which must parse, or "" for none.
func Var[T any](set *pflag.FlagSet, to *T, parse func(string) (T, error), kind, name, initial, usage string) {
	v := &value[T]{to: to, parse: parse, kind: kind}
	if initial != "" {
		if err := v.Set(initial); err != nil {
			panic(err) // a default that its own flag refuses
		}
	}
	set.Var(v, name, usage)
}
