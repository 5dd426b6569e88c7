#include "daemon/stream_check.h"

#include <utility>

#include "base/status.h"
#include "dedup_store/image_stream.h"

namespace rekindle::daemon {

absl::StatusOr<CheckedStream> CheckImageStream(
    std::function<absl::StatusOr<size_t>(absl::Span<std::byte>)> source) {
  store::ImageStreamReader stream(std::move(source));
  RK_ASSIGN_OR_RETURN(const v1::ImageStreamHeader header, stream.ReadHeader());
  for (;;) {
    RK_ASSIGN_OR_RETURN(const v1::ImageStreamRecord record, stream.Next());
    if (record.has_end()) return CheckedStream{header.origin(), header.base()};
    RK_RETURN_IF_ERROR(stream.ReadData().status());
  }
}

}  // namespace rekindle::daemon
