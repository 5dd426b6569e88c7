#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace rekindle {
namespace {

TEST(StatusTest, AnErrorNumberStaysWithWhatIsSaidOfIt) {
  const absl::Status status = ErrnoStatus(ESTALE, "/mnt/x");
  EXPECT_EQ(ErrnoOf(status), ESTALE);
  EXPECT_EQ(ErrnoOf(Annotate(status, "reading")), ESTALE);
  EXPECT_EQ(ErrnoOf(WithMessage(status, "something else")), ESTALE);
}

TEST(StatusTest, OfTwoFailuresTheFirstIsTheOneWithWhatItCarries) {
  const absl::Status first = ErrnoStatus(ESTALE, "first");
  const absl::Status both = BothFailures(first, ErrnoStatus(ENOENT, "second"));
  EXPECT_EQ(both.code(), first.code());
  EXPECT_EQ(ErrnoOf(both), ESTALE);
  EXPECT_EQ(both.message(), absl::StrCat(first.message(), "; and ", ErrnoStatus(ENOENT, "second").message()));
  EXPECT_EQ(BothFailures(first, absl::OkStatus()), first);
}

TEST(StatusTest, WhatOnlyTellsOfAnErrorIsOfNone) {
  EXPECT_EQ(ErrnoOf(absl::OkStatus()), 0);
  EXPECT_EQ(ErrnoOf(absl::ResourceExhaustedError(ErrnoStatus(ENOSPC, "x").message())), 0);
}

}  // namespace
}  // namespace rekindle
