#include "functions/simulation_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "functions/azure_trace.h"
#include "functions/trace_random.h"

namespace rekindle::functions {
namespace {

using Json = nlohmann::ordered_json;

// Enough for everything, and little enough that sums and products of them can be computed.
constexpr double kMost = 1e9, kMostSpread = 2, kLeastDiskSpeed = 0.001;
constexpr int kMostImagesPerClass = 10'000;

absl::Status CheckNumber(double value) {
  if (!(value >= 0)) return absl::InvalidArgumentError("must not be negative");
  if (value > kMost) return absl::InvalidArgumentError(absl::StrCat("must not be more than ", kMost));
  return absl::OkStatus();
}

// Every field once, for reading and for writing.
template <typename Model, typename Visitor>
void VisitFields(Model& model, Visitor&& visit) {
  visit("cold_ms", model.cold_ms);
  visit("criu_restore_ms", model.criu_restore_ms);
  visit("criu_lazy_ms", model.criu_lazy_ms);
  visit("clone_ms", model.clone_ms);
  visit("template_ms", model.template_ms);
  visit("working_set_mb", model.working_set_mb);
  visit("warm_ms", model.warm_ms);
  visit("code_load_ms", model.code_load_ms);
  visit("disk_mb_per_second", model.disk_mb_per_second);
  visit("disk_latency_ms", model.disk_latency_ms);
  visit("spread", model.spread);
  visit("private_share", model.private_share);
  visit("own_share", model.own_share);
  visit("default_memory_mb", model.default_memory_mb);
  visit("default_duration_ms", model.default_duration_ms);
  visit("class_base_mb", model.class_base_mb);
  visit("class_growth", model.class_growth);
  visit("images_per_class", model.images_per_class);
  visit("zipf_exponent", model.zipf_exponent);
  visit("unshared_apps", model.unshared_apps);
  visit("keep_alive_seconds", model.keep_alive_seconds);
  visit("fade_seconds", model.fade_seconds);
}

absl::Status Read(const Json& json, Curve* curve) {
  if (!json.is_array() || json.size() < 2)
    return absl::InvalidArgumentError("must be a list of at least two [MB, value]");
  Curve read;
  for (const Json& point : json) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) {
      return absl::InvalidArgumentError("must be a list of [MB, value]");
    }
    std::pair<double, double> pair(point[0], point[1]);
    for (double value : {pair.first, pair.second}) {
      if (absl::Status good = CheckNumber(value); !good.ok())
        return absl::InvalidArgumentError(absl::StrCat(good.message(), " (", point.dump(), ")"));
    }
    if (!read.points.empty() && pair.first <= read.points.back().first) {
      return absl::InvalidArgumentError("must have rising MB");
    }
    read.points.push_back(pair);
  }
  *curve = std::move(read);
  return absl::OkStatus();
}

template <typename Number>
absl::Status Read(const Json& json, Number* number) {
  if (!json.is_number()) return absl::InvalidArgumentError("must be a number");
  double value = json.get<double>();
  RK_RETURN_IF_ERROR(CheckNumber(value));
  if (std::is_integral_v<Number> && value != std::floor(value))
    return absl::InvalidArgumentError("must be a whole number");
  *number = static_cast<Number>(value);
  return absl::OkStatus();
}

absl::Status Check(const SimulationModel& model) {
  if (model.class_growth <= 1.01) return absl::InvalidArgumentError("class_growth must be more than 1.01");
  if (model.class_base_mb <= 0) return absl::InvalidArgumentError("class_base_mb must be more than 0");
  if (model.images_per_class < 1 || model.images_per_class > kMostImagesPerClass)
    return absl::InvalidArgumentError(absl::StrCat("images_per_class must be 1 to ", kMostImagesPerClass));
  if (model.disk_mb_per_second < kLeastDiskSpeed) {
    return absl::InvalidArgumentError(absl::StrCat("disk_mb_per_second must be at least ", kLeastDiskSpeed));
  }
  if (model.spread > kMostSpread)
    return absl::InvalidArgumentError(absl::StrCat("spread must not be more than ", kMostSpread));
  if (model.fade_seconds < 1) return absl::InvalidArgumentError("fade_seconds must be at least 1");
  if (model.default_memory_mb <= 0 || model.default_memory_mb > kMostMemoryMb) {
    return absl::InvalidArgumentError(
        absl::StrCat("default_memory_mb must be more than 0, and not more than ", kMostMemoryMb));
  }
  for (double share : {model.private_share, model.own_share, model.unshared_apps}) {
    if (share > 1)
      return absl::InvalidArgumentError("private_share, own_share and unshared_apps are shares, up to 1");
  }
  return absl::OkStatus();
}

uint64_t BytesOfMb(double mb) { return static_cast<uint64_t>(std::llround(mb * (1 << 20))); }

double ReadMs(const SimulationModel& model, double mb) {
  return model.disk_latency_ms + mb / model.disk_mb_per_second * 1e3;
}

}  // namespace

double Curve::At(double mb) const {
  if (mb <= points.front().first) return points.front().second;
  size_t next = 1;
  while (next + 1 < points.size() && points[next].first < mb) ++next;
  auto [x0, y0] = points[next - 1];
  auto [x1, y1] = points[next];
  return std::clamp(y0 + (y1 - y0) * (mb - x0) / (x1 - x0), 0.0, kMost);
}

absl::Status ApplyJson(absl::string_view text, const std::string& source, SimulationModel* model) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("model '", source, "' is not a JSON object"));
  }
  SimulationModel changed = *model;
  absl::Status status;
  VisitFields(changed, [&](const char* name, auto& field) {
    auto found = json.find(name);
    if (found == json.end()) return;
    absl::Status read = Read(*found, &field);
    if (!read.ok() && status.ok()) {
      status = absl::InvalidArgumentError(absl::StrCat("model '", source, "': ", name, " ", read.message()));
    }
    json.erase(found);
  });
  if (!status.ok()) return status;
  if (!json.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("model '", source, "': there is no '", json.begin().key(),
                                                   "'; 'rekindle sim --print-model' shows what there is"));
  }
  if (absl::Status check = Check(changed); !check.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("model '", source, "': ", check.message()));
  }
  *model = std::move(changed);
  return absl::OkStatus();
}

std::string ToJson(const SimulationModel& model) {
  Json json = Json::object();
  VisitFields(model, [&](const char* name, const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, Curve>) {
      json[name] = field.points;
    } else {
      json[name] = field;
    }
  });
  return json.dump(2);
}

DependencyChoice ChooseDependency(const SimulationModel& model, double memory_mb, uint64_t app_hash) {
  double steps =
      std::log(std::max(memory_mb, model.class_base_mb) / model.class_base_mb) / std::log(model.class_growth);
  auto size_class = static_cast<uint64_t>(steps + 1e-9);
  DependencyChoice choice;
  choice.mb = model.class_base_mb * std::pow(model.class_growth, static_cast<double>(size_class)) *
              (1 - model.own_share);
  if (UnitInterval(Mix(app_hash, 1)) < model.unshared_apps) {
    choice.key = Mix(app_hash, 2) | 1ull << 63;
    return choice;
  }
  double total = 0;
  for (int rank = 1; rank <= model.images_per_class; ++rank) total += std::pow(rank, -model.zipf_exponent);
  double draw = UnitInterval(Mix(app_hash, 3)) * total;
  int rank = 1;
  while (rank < model.images_per_class && (draw -= std::pow(rank, -model.zipf_exponent)) >= 0) ++rank;
  choice.key = size_class << 32 | static_cast<uint64_t>(rank);
  return choice;
}

DependencyProfile ProfileOfDependency(const SimulationModel& model, double mb) {
  DependencyProfile profile;
  profile.template_bytes = profile.ram_bytes = profile.disk_bytes = BytesOfMb(mb);
  profile.read_ms = ReadMs(model, model.working_set_mb.At(mb));
  profile.make_template_ms = model.clone_ms.At(mb);
  return profile;
}

FunctionProfile ProfileOf(const SimulationModel& model, const ModelFunction& function) {
  const double mb = function.memory_mb;
  const double own_mb = std::max(model.own_share * mb, mb - function.dependency_mb);
  FunctionProfile profile;
  profile.dependency = function.dependency;
  profile.instance_bytes = profile.template_bytes = BytesOfMb(std::max(model.private_share * mb, own_mb));
  profile.ram_bytes = profile.disk_bytes = BytesOfMb(own_mb);
  profile.warm_ms = model.warm_ms;
  profile.template_ms = model.template_ms.At(mb);
  profile.image_ms = model.clone_ms.At(mb);
  profile.image_read_ms = ReadMs(model, own_mb);
  profile.dependency_template_ms = model.template_ms.At(function.dependency_mb) + model.code_load_ms;
  profile.dependency_image_ms = model.clone_ms.At(function.dependency_mb) + model.code_load_ms;
  profile.cold_ms = model.cold_ms.At(mb) + model.code_load_ms;
  return profile;
}

}  // namespace rekindle::functions
