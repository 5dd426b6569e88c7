// The real write queues: io_uring with registered buffers, and plain pwrite where io_uring is not to be had
// or the file is too small to be worth a ring.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "dedup_store/block_io.h"

namespace rekindle::store {

// `fd` stays the caller's and must stay open.
absl::StatusOr<std::unique_ptr<WriteQueue>> MakeWriteQueue(int fd, const std::string& path,
                                                           size_t buffer_bytes, size_t buffers);

// pwrite until all is written.
absl::Status WriteAll(int fd, const std::string& path, const std::byte* data, size_t bytes, uint64_t offset);

// The status for a failed system call on a file; a full disk tells how much is free and what to do. `fd` may
// be -1.
absl::Status FileError(int error_number, absl::string_view what, const std::string& path, int fd);

}  // namespace rekindle::store
