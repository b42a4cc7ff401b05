package memory

import (
	"maps"
	"math/rand/v2"
	"testing"

	"konnectivity/internal/testutil"
)

// A Map is the same as Go's, whatever is done to both.
func TestAMapIsAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		var m Map[int, int]
		want := map[int]int{}
		for range rng.IntN(100) {
			key := rng.IntN(20)
			if rng.IntN(3) == 0 {
				m.Delete(key)
				delete(want, key)
			} else {
				value := rng.Int()
				m.Set(key, value)
				want[key] = value
			}
			testutil.Requires(t, m.Get(key) == want[key] && m.Len() == len(want),
				"%d: %d of %d; want %d of %d", key, m.Get(key), m.Len(), want[key], len(want))
		}
		got := maps.Collect(m.All())
		testutil.Requires(t, maps.Equal(got, want), "%v, want %v", got, want)
		for range m.All() {
			break // which may end early
		}
	}
}

// A Map that is full of entries, and has lost all, is as small as at first.
func TestAMapShrinks(t *testing.T) {
	var m Map[int, int]
	for i := range 3 * listed {
		m.Set(i, i)
	}
	for i := range 3 * listed {
		m.Delete(i)
	}
	if m.Set(1, 1); m.many != nil || len(m.list) != 1 {
		t.Errorf("%+v", m)
	}
}
