#include "functions/simulation_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "functions/trace_random.h"

namespace rekindle::functions {
namespace {

using ::testing::HasSubstr;

TEST(SimulationModelTest, CurvesAreStraightBetweenTheirPoints) {
  Curve curve{{{10, 20}, {110, 120}, {210, 320}}};
  EXPECT_DOUBLE_EQ(curve.At(1), 20);
  EXPECT_DOUBLE_EQ(curve.At(10), 20);
  EXPECT_DOUBLE_EQ(curve.At(60), 70);
  EXPECT_DOUBLE_EQ(curve.At(160), 220);
  EXPECT_DOUBLE_EQ(curve.At(310), 520);
  EXPECT_DOUBLE_EQ((Curve{{{1, 0}, {1.000001, 1e9}}}).At(1e6), 1e9);  // no further
}

TEST(SimulationModelTest, JsonSaysAllAndIsRead) {
  SimulationModel model;
  ASSERT_TRUE(
      ApplyJson(R"({"warm_ms": 3, "cold_ms": [[1, 5], [2, 6]], "images_per_class": 4})", "m", &model).ok());
  EXPECT_EQ(model.warm_ms, 3);
  EXPECT_EQ(model.images_per_class, 4);
  EXPECT_DOUBLE_EQ(model.cold_ms.At(1.5), 5.5);
  SimulationModel again;
  ASSERT_TRUE(ApplyJson(ToJson(model), "m", &again).ok());
  EXPECT_EQ(ToJson(again), ToJson(model));
}

TEST(SimulationModelTest, BadModelsAreNamedAndChangeNothing) {
  SimulationModel model;
  const std::string before = ToJson(model);
  auto error = [&](const char* json) { return std::string(ApplyJson(json, "file.json", &model).message()); };
  EXPECT_THAT(error("[]"), HasSubstr("model 'file.json' is not a JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error(R"({"warm_ms": 2, "warmth": 1})"), HasSubstr("there is no 'warmth'"));
  EXPECT_THAT(error(R"({"warm_ms": "2"})"), HasSubstr("warm_ms must be a number"));
  EXPECT_THAT(error(R"({"warm_ms": -2})"), HasSubstr("warm_ms must not be negative"));
  EXPECT_THAT(error(R"({"cold_ms": [[1, 2]]})"), HasSubstr("cold_ms must be a list of at least two"));
  EXPECT_THAT(error(R"({"cold_ms": [[1, 2], [1, 3]]})"), HasSubstr("cold_ms must have rising MB"));
  EXPECT_THAT(error(R"({"cold_ms": [[1, 2], ["x", 3]]})"), HasSubstr("list of [MB, value]"));
  EXPECT_THAT(error(R"({"class_growth": 1})"), HasSubstr("class_growth"));
  EXPECT_THAT(error(R"({"disk_mb_per_second": 0})"), HasSubstr("disk_mb_per_second"));
  EXPECT_THAT(error(R"({"own_share": 2})"), HasSubstr("shares"));
  EXPECT_THAT(error(R"({"warm_ms": 2e9})"), HasSubstr("warm_ms must not be more than 1e+09"));
  EXPECT_THAT(error(R"({"warm_ms": NaN})"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error(R"({"cold_ms": [[1, 2], [2, 1e300]]})"),
              HasSubstr("cold_ms must not be more than 1e+09 ([2,1e+300])"));
  EXPECT_THAT(error(R"({"cold_ms": [[1, 2], [2, -1]]})"), HasSubstr("cold_ms must not be negative ([2,-1])"));
  EXPECT_THAT(error(R"({"images_per_class": 3e9})"), HasSubstr("images_per_class must not be more than"));
  EXPECT_THAT(error(R"({"images_per_class": 1000000})"), HasSubstr("images_per_class must be 1 to 10000"));
  EXPECT_THAT(error(R"({"images_per_class": 1.5})"), HasSubstr("images_per_class must be a whole number"));
  EXPECT_THAT(error(R"({"disk_mb_per_second": 1e-300})"), HasSubstr("disk_mb_per_second must be at least"));
  EXPECT_THAT(error(R"({"spread": 50})"), HasSubstr("spread must not be more than 2"));
  EXPECT_THAT(error(R"({"default_memory_mb": 1e8})"),
              HasSubstr("default_memory_mb must be more than 0, and"));
  EXPECT_EQ(ToJson(model), before);
}

TEST(SimulationModelTest, ADependencyImageFitsIntoItsFunctions) {
  SimulationModel model;
  for (double mb = 20; mb < 2000; mb *= 1.1) {
    DependencyChoice choice = ChooseDependency(model, mb, Mix(static_cast<uint64_t>(mb)));
    EXPECT_LE(choice.mb, mb);
    EXPECT_GE(choice.mb, mb * 0.9 / 1.26);
  }
}

TEST(SimulationModelTest, SomeAreSharedByManySomeByNobody) {
  SimulationModel model;
  std::map<uint64_t, int> users;
  for (uint64_t app = 0; app < 10'000; ++app) ++users[ChooseDependency(model, 140, Mix(app)).key];
  int alone = 0, most = 0;
  for (const auto& [key, count] : users) {
    alone += count == 1;
    most = std::max(most, count);
  }
  EXPECT_NEAR(alone, 3000, 200);
  EXPECT_EQ(users.size(), static_cast<size_t>(alone) + 8);
  EXPECT_NEAR(most, 7000 / 2.718, 200);  // Zipf over 8: the sum of 1/rank is 2.718
}

TEST(SimulationModelTest, TheProfileIsWhatTheFiguresSay) {
  SimulationModel model;
  model.code_load_ms = 20;
  FunctionProfile profile = ProfileOf(model, {3, 120, 100});
  EXPECT_EQ(profile.dependency, 3u);
  EXPECT_DOUBLE_EQ(profile.cold_ms, 1014.7 + 20);
  EXPECT_DOUBLE_EQ(profile.image_ms, 77.4);
  EXPECT_DOUBLE_EQ(profile.template_ms, 19.7);
  EXPECT_NEAR(profile.dependency_template_ms, 2.7 + (19.7 - 2.7) * 90 / 110 + 20, 1e-9);
  EXPECT_EQ(profile.instance_bytes, 60u << 20);
  EXPECT_EQ(profile.ram_bytes, 20u << 20);  // what is not in the dependency image
}

}  // namespace
}  // namespace rekindle::functions
