#include "daemon/process_output.h"

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kMost = 1 << 10;

TEST(ProcessOutputTest, ItIsAllThatWasWritten) {
  auto output = ProcessOutput::Make(kMost);
  ASSERT_TRUE(output.ok()) << output.status();
  UniqueFd writer = (*output)->TakeWriteEnd();
  ASSERT_TRUE((*output)->Follow().ok());
  ASSERT_TRUE(WriteFully(writer.get(), "all of it", 9, "pipe").ok());
  writer.Reset();
  EXPECT_EQ((*output)->Text(absl::Minutes(1)), "all of it");
}

TEST(ProcessOutputTest, WhoGoesOnWritingIsNotWaitedForForEver) {
  auto output = ProcessOutput::Make(kMost);
  ASSERT_TRUE(output.ok()) << output.status();
  // As a daemon that the process has left has it.
  const UniqueFd writer = (*output)->TakeWriteEnd();
  ASSERT_TRUE((*output)->Follow().ok());
  EXPECT_EQ((*output)->Text(absl::Milliseconds(1)), "");
  // Nor is he by the end of one that nobody has asked.
  auto another = ProcessOutput::Make(kMost);
  ASSERT_TRUE(another.ok()) << another.status();
  const UniqueFd also = (*another)->TakeWriteEnd();
  ASSERT_TRUE((*another)->Follow().ok());
  another->reset();
}

}  // namespace
}  // namespace rekindle::daemon
