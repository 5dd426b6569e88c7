#include "base/status_json.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error_cause.h"
#include "base/status.h"

namespace rekindle {
namespace {

using Json = nlohmann::json;

absl::Status ThereAndBack(const absl::Status& status) {
  Json json;
  PutStatus(status, &json);
  return StatusOf(Json::parse(json.dump()));
}

TEST(StatusJson, AnErrorComesWithWhatItWasMadeOf) {
  const absl::Status gone = ErrnoStatus(ENOENT, "binding /a to /b");
  // Its words are for people: they say nothing that is decided by.
  EXPECT_EQ(ThereAndBack(WithMessage(gone, "no such place")), WithMessage(gone, "no such place"));
  EXPECT_EQ(ErrnoOf(ThereAndBack(Annotate(gone, "a sandbox"))), ENOENT);
  const absl::Status no_store = WithCause(absl::NotFoundError("nothing"), kCauseNotMounted);
  EXPECT_EQ(ThereAndBack(no_store), no_store);
  const absl::Status plain = absl::NotFoundError("no clone named x: No such file or directory");
  EXPECT_EQ(ThereAndBack(plain), plain);
}

TEST(StatusJson, AnOlderProgramHasItsWordsAlone) {
  EXPECT_EQ(ErrnoOf(StatusOf(Json{{"error", "binding /a: No such file or directory"}, {"code", 5}})), ENOENT);
  EXPECT_EQ(ErrnoOf(StatusOf(Json{{"error", "no image x"}, {"code", 5}})), 0);
  EXPECT_EQ(CauseOf(StatusOf(Json{{"error", "there is no store at /x"}, {"code", 5}})), kCauseNoStore);
  EXPECT_TRUE(absl::IsInternal(StatusOf(Json{{"error", "no code"}})));
}

TEST(StatusJson, WhatMakesNoSenseThrows) {
  for (const char* text : {"{}", "[1]", R"({"error": 1})", R"({"error": "no", "code": "five"})",
                           R"({"error": "no", "code": 5, "errno": "two"})"}) {
    EXPECT_THROW((void)StatusOf(Json::parse(text)), Json::exception) << text;
  }
}

}  // namespace
}  // namespace rekindle
