package link_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Long random sequences against the model of FuzzOperations.
func TestOperations(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds /= 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			ops := make([]byte, 3*300)
			for i := range ops {
				ops[i] = byte(rnd.Uint32())
			}
			runOperations(t, ops)
		})
	}
}
