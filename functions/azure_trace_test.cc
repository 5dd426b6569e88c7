#include "functions/azure_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "functions/trace_files_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class AzureTraceTest : public ::testing::Test {
 protected:
  TraceFiles files_;
};

TEST_F(AzureTraceTest, ReadsCountsMemoryAndDurations) {
  std::string day =
      files_.Invocations("i.csv", {{"o,a,f,http", {{1, 3}, {1440, 7}}}, {"o,a,g,timer", {{2, 1}}}});
  std::string memory = files_.Memory("m.csv", {{"o,a", "120.5"}});
  std::string durations = files_.Durations("d.csv", {{"o,a,f", "1,2,3,4,5,6,7"}});
  absl::StatusOr<AzureTrace> trace = AzureTrace::Open({durations, day, memory});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->days(), 1u);
  absl::StatusOr<TraceDay> counts = trace->ReadDay(0);
  ASSERT_TRUE(counts.ok()) << counts.status();
  ASSERT_EQ(trace->functions().size(), 2u);
  ASSERT_EQ(trace->apps().size(), 1u);
  EXPECT_DOUBLE_EQ(trace->apps()[0].memory_mb, 120.5);
  EXPECT_TRUE(trace->functions()[0].has_duration);
  EXPECT_FALSE(trace->functions()[1].has_duration);
  EXPECT_TRUE(trace->functions()[1].timer);
  EXPECT_FLOAT_EQ(trace->functions()[0].duration_ms[3], 4);
  ASSERT_EQ(counts->calls.size(), 3u);
  EXPECT_EQ(counts->first[0], 0u);
  EXPECT_EQ(counts->first[1], 1u);
  EXPECT_EQ(counts->first[2], 2u);
  EXPECT_EQ(counts->first[1439], 2u);
  EXPECT_EQ(counts->first[1440], 3u);
  EXPECT_EQ(counts->calls[0].count, 3u);
  EXPECT_EQ(counts->calls[1].function, 1u);
  EXPECT_EQ(counts->calls[2].count, 7u);
}

TEST_F(AzureTraceTest, AFunctionOfTwoDaysIsOne) {
  std::string first = files_.Invocations("1.csv", {{"o,a,f,http", {{1, 3}}}});
  std::string second = files_.Invocations("2.csv", {{"o,a,new,http", {{5, 1}}}, {"o,a,f,http", {{9, 2}}}});
  absl::StatusOr<AzureTrace> trace = AzureTrace::Open({first, second});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_TRUE(trace->ReadDay(0).ok());
  absl::StatusOr<TraceDay> day = trace->ReadDay(1);
  ASSERT_TRUE(day.ok()) << day.status();
  EXPECT_EQ(trace->functions().size(), 2u);
  EXPECT_EQ(day->calls[0].function, 1u);  // minute 5
  EXPECT_EQ(day->calls[1].function, 0u);  // minute 9
}

TEST_F(AzureTraceTest, TakesWindowsLineEndsAndNoLastOne) {
  std::string text = TraceFiles::InvocationsText({{"o,a,f,http", {{1, 3}}}});
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.replace(at, 1, "\r\n");
  text.resize(text.size() - 2);
  absl::StatusOr<AzureTrace> trace = AzureTrace::Open({files_.Write("w.csv", text)});
  ASSERT_TRUE(trace.ok()) << trace.status();
  absl::StatusOr<TraceDay> day = trace->ReadDay(0);
  ASSERT_TRUE(day.ok()) << day.status();
  EXPECT_EQ(day->calls.size(), 1u);
}

TEST_F(AzureTraceTest, ErrorsNameFileAndLine) {
  auto error = [&](const std::string& name, const std::string& text) {
    absl::StatusOr<AzureTrace> trace = AzureTrace::Open({files_.Write(name, text)});
    if (!trace.ok()) return std::string(trace.status().message());
    absl::StatusOr<TraceDay> day = trace->ReadDay(0);
    return day.ok() ? "" : std::string(day.status().message());
  };
  const std::string good = TraceFiles::InvocationsText({{"o,a,f,http", {{1, 3}}}});
  EXPECT_EQ(error("good.csv", good), "");
  EXPECT_THAT(error("text.csv", "hello\n"), HasSubstr("text.csv:1: is no Azure Functions trace"));
  EXPECT_THAT(error("empty.csv", ""), HasSubstr("empty.csv' is empty"));
  EXPECT_THAT(error("other.csv", "HashOwner,HashApp,HashFunction,Surprise\n"),
              HasSubstr("other.csv:1: is no file of"));
  EXPECT_THAT(error("short.csv", "HashOwner,HashApp,HashFunction,Trigger,1,2\n"), HasSubstr("has 2 minutes"));
  EXPECT_THAT(error("fields.csv", good + "o,a,g,http,1\n"),
              HasSubstr("fields.csv:3: has 5 fields, the first line 1444"));
  std::string letter = good;
  letter.replace(letter.find(",http,3"), 7, ",http,x");
  EXPECT_THAT(error("letter.csv", letter), HasSubstr("letter.csv:2: minute 1 is 'x', not a count"));
  letter.replace(letter.find(",http,x"), 7, ",http,-1");
  EXPECT_THAT(error("minus.csv", letter), HasSubstr("minus.csv:2: minute 1 is '-1'"));
  EXPECT_THAT(AzureTrace::Open({files_.path() + "/none.csv"}).status().message(), HasSubstr("/none.csv'"));
  EXPECT_THAT(AzureTrace::Open({files_.path()}).status().message(), HasSubstr("cannot read"));
}

TEST_F(AzureTraceTest, BadNumbersOfMemoryAndDurationsAreErrors) {
  std::string day = files_.Invocations("i.csv", {{"o,a,f,http", {{1, 3}}}});
  EXPECT_THAT(AzureTrace::Open({day, files_.Memory("m.csv", {{"o,a", "lots"}})}).status().message(),
              HasSubstr("m.csv:2: AverageAllocatedMb is 'lots', not a number"));
  for (const char* mb : {"-1", "1e300", "1000001"}) {
    EXPECT_THAT(
        AzureTrace::Open({day, files_.Memory("l.csv", {{"o,b", "1"}, {"o,a", mb}})}).status().message(),
        HasSubstr("l.csv:3: AverageAllocatedMb is "))
        << mb;
  }
  EXPECT_THAT(
      AzureTrace::Open({day, files_.Durations("h.csv", {{"o,a,f", "1,2,3,4,5,6,1e300"}})}).status().message(),
      HasSubstr("h.csv:2: percentile_Average_100 is 1e+300, more than 1e+12 ms"));
  EXPECT_THAT(
      AzureTrace::Open({day, files_.Durations("d.csv", {{"o,a,f", "1,2,3,,5,6,7"}})}).status().message(),
      HasSubstr("d.csv:2: percentile_Average_50 is '', not a number"));
  EXPECT_THAT(
      AzureTrace::Open({day, files_.Durations("n.csv", {{"o,a,f", "1,2,3,nan,5,6,7"}})}).status().message(),
      HasSubstr("n.csv:2"));
  EXPECT_THAT(AzureTrace::Open({files_.Memory("only.csv", {{"o,a", "1"}})}).status().message(),
              HasSubstr("no file of invocations"));
}

}  // namespace
}  // namespace rekindle::functions
