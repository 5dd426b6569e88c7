#include "base/cause_in_words.h"

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/error_cause.h"

namespace rekindle {

absl::Status WithCauseInWords(absl::Status status) {
  const absl::string_view message = status.message();
  if (!absl::IsNotFound(status)) return status;
  if (absl::StartsWith(message, "there is no store at ")) {
    return WithCause(std::move(status), absl::StrContains(message, "the folder is empty")  ? kCauseEmptyFolder
                                        : absl::StrContains(message, "nothing is mounted") ? kCauseNotMounted
                                                                                           : kCauseNoStore);
  }
  return WithErrno(std::move(status), absl::EndsWith(message, ": No such file or directory") ? ENOENT : 0);
}

}  // namespace rekindle
