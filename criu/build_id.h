// The build ID of a program or library: two files with the same one have the same code and data.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace rekindle::criu {

// The bytes of the GNU build ID note of the 64-bit ELF file `fd`. Reads what it needs and no more, wherever
// the descriptor stands. NotFound: it is another kind of file, or has none. DataLoss: its headers make no
// sense.
absl::StatusOr<std::string> ReadBuildId(int fd);

}  // namespace rekindle::criu
