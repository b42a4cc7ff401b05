package admin

import (
	"reflect"
	"testing"

	"konnectivity/internal/testutil"
)

// fill sets all figures below v to n.
func fill(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.Float64:
		v.SetFloat(float64(n))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]int64{"a": int64(n)}))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() { // not inside a time.Time
				fill(v.Field(i), n)
			}
		}
	}
}

// What several servers have of a tenant is added up, whatever is counted.
func TestSumsHaveAllFigures(t *testing.T) {
	of := func(n int) (tenant Tenant) {
		fill(reflect.ValueOf(&tenant).Elem(), n)
		return tenant
	}
	one, sum := of(1), of(0)
	sum.add(one, "a")
	sum.add(of(2), "b")
	sum.On, sum.ServerNames = nil, nil
	testutil.Holds(t, reflect.DeepEqual(sum, of(3)), "1 and 2 are %+v", sum)
	testutil.Equal(t, one.Dials.Failures["a"], 1, "failures of one, which the sum left")
}
