package admission

import "syscall"

// survivableHere are the ones that not every system defines.
var survivableHere = []syscall.Errno{syscall.ENONET}
