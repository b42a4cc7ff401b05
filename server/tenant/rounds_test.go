package tenant

import "testing"

// In as many looks as a round has, each tenant's files are looked at once, and in
// each look those of as many tenants, whenever they came.
func TestEachLookIsAtItsPartOfTheFiles(t *testing.T) {
	const crowd = 100
	var r rounds
	turns := make(map[int]uint)
	for round := range 5 {
		for len(turns) < (round+1)*crowd/5 { // some come in each round
			turns[len(turns)] = r.turn()
		}
		seen := make(map[int]int)
		for range filesEvery {
			r.begin()
			before := len(seen)
			for tenant, turn := range turns {
				if r.due(turn) {
					seen[tenant]++
				}
			}
			if n, part := len(seen)-before, len(turns)/filesEvery; n < part || n > part+1 {
				t.Errorf("a look is at the files of %d of %d tenants", n, len(turns))
			}
		}
		for tenant := range turns {
			if seen[tenant] != 1 {
				t.Errorf("round %d looks %d times at the files of tenant %d", round, seen[tenant], tenant)
			}
		}
	}
}
