#include "daemon/early_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(WarnOfEarlyVariables, NamesThoseThatAreSet) {
  functions::FunctionSpec spec;
  spec.runtime.kind = functions::RuntimeKind::kPython;
  spec.environment = {{"GREETING", "hi"}, {"PYTHONPATH", "/opt"}, {"TZ", "UTC"}};
  EXPECT_THAT(WarnOfEarlyVariables(spec, {"numpy"}), IsEmpty());
  spec.environment["OMP_NUM_THREADS"] = spec.environment["BLIS_NUM_THREADS"] = "2";
  spec.environment["HF_HOME"] = "/models";
  EXPECT_THAT(
      WarnOfEarlyVariables(spec, {"numpy", "torch"}),
      ElementsAre(AllOf(HasSubstr("BLIS_NUM_THREADS, HF_HOME, OMP_NUM_THREADS"), HasSubstr("numpy, torch"),
                        HasSubstr("--deps none"), Not(HasSubstr("GREETING")))));
  // Loaded with the function, it sees them.
  EXPECT_THAT(WarnOfEarlyVariables(spec, {}), IsEmpty());
  spec.environment = {{"NODE_OPTIONS", "--max-old-space-size=64"}};
  spec.runtime.kind = functions::RuntimeKind::kNode;
  EXPECT_THAT(WarnOfEarlyVariables(spec, {}), ElementsAre(HasSubstr("NODE_OPTIONS")));
  spec.runtime.kind = functions::RuntimeKind::kProvided;
  EXPECT_THAT(WarnOfEarlyVariables(spec, {}), IsEmpty());
}

}  // namespace
}  // namespace rekindle::daemon
