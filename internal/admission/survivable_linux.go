package admission

import "syscall"

// survivableHere are those that not every system has a name for.
var survivableHere = []syscall.Errno{syscall.ENONET}
