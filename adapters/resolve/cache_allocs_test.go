package resolve

import (
	"fmt"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// full is a cache with as many keys as it keeps.
func full() (*Cache[[]int], []string) {
	c, keys := new(Cache[[]int]), make([]string, maxCached)
	for i := range keys {
		keys[i] = fmt.Sprintf("service-%d.namespace.svc", i)
		c.Put(keys[i], []int{i}, nil, time.Hour)
	}
	return c, keys
}

func BenchmarkCache(b *testing.B) {
	c, keys := full()
	b.Run("op=hit", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Get(keys[i%len(keys)])
		}
	})
	b.Run("op=hit-by-many", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				c.Get(keys[i%len(keys)])
			}
		})
	})
	b.Run("op=miss", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Get("nobody.namespace.svc")
		}
	})
	b.Run("op=replace", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Put(keys[i%len(keys)], nil, nil, time.Hour)
		}
	})
	b.Run("op=add-to-full", func(b *testing.B) { // one goes for each that comes
		fresh := make([]string, 4*maxCached)
		for i := range fresh {
			fresh[i] = fmt.Sprint("fresh-", i)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Put(fresh[i%len(fresh)], nil, nil, time.Hour)
		}
	})
}

func TestCacheAllocatesNothing(t *testing.T) {
	c, keys := full()
	for name, f := range map[string]func(){
		"hit":     func() { c.Get(keys[7]) },
		"miss":    func() { c.Get("nobody") },
		"replace": func() { c.Put(keys[7], nil, nil, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) { testutil.MaxAllocs(t, 0, f) })
	}
}
