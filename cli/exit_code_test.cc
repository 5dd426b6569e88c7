#include "cli/exit_code.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/error_cause.h"
#include "base/status.h"

namespace rekindle::cli {
namespace {

TEST(ExitCodeTest, OnlyWhatRekindleKeepsIsNotFound) {
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError("there is no image web:v3. The closest there is: web:v2")),
            kNotFound);
  for (const char* cause : {kCauseNoStore, kCauseEmptyFolder, kCauseNotMounted})
    EXPECT_EQ(ExitCodeFor(WithCause(absl::NotFoundError("there is none"), cause)), ExitCode::kNoStore)
        << cause;
  // Scripts begin anew where there is no image.
  EXPECT_EQ(ExitCodeFor(Annotate(ErrnoStatus(ENOENT, "opening /nonexist/x"), "--payload")), kFailed);
  EXPECT_EQ(ExitCodeFor(ErrnoStatus(ESRCH, "signalling process 7")), kNotFound);
}

}  // namespace
}  // namespace rekindle::cli
