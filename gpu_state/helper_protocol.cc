#include "gpu_state/helper_protocol.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_json.h"

namespace rekindle::gpu {
namespace {

using Json = nlohmann::json;

constexpr std::array kWhats = {"hello", "state", "thread", "act", "settle", "devices"};

// Each takes 120 bytes at most, and the GPUs have the rest of the packet.
constexpr ptrdiff_t kUsesInAPacket = 400;

absl::Status Malformed(absl::string_view why) {
  return absl::InternalError(
      absl::StrCat("a packet between Rekindle and its GPU helper makes no sense: ", why));
}

}  // namespace

std::string HelperRequest::Encode() const {
  Json json = {{"id", id}, {"do", kWhats[static_cast<size_t>(what)]}, {"pid", pid}};
  if (what == What::kAct) {
    json["action"] = std::string(NameOf(action));
    json["timeout_ms"] = timeout_ms;
    json["pairs"] = pairs;
  }
  return json.dump();
}

absl::StatusOr<HelperRequest> HelperRequest::Decode(absl::string_view packet) {
  try {
    const Json json = Json::parse(packet.begin(), packet.end());
    HelperRequest request;
    request.id = json.at("id");
    const std::string what = json.at("do");
    auto found = std::find(kWhats.begin(), kWhats.end(), what);
    if (found == kWhats.end()) return Malformed(what);
    request.what = static_cast<What>(found - kWhats.begin());
    request.pid = json.value("pid", 0);
    if (request.what == What::kAct) {
      auto action = ActionNamed(std::string(json.at("action")));
      if (!action) return Malformed("unknown action");
      request.action = *action;
      request.timeout_ms = json.value("timeout_ms", int64_t{0});
      request.pairs = json.value("pairs", decltype(request.pairs)());
    }
    return request;
  } catch (const Json::exception& e) {
    return Malformed(e.what());
  }
}

std::string HelperAnswer::Encode() const {
  Json json = {{"id", id}};
  PutStatus(status, &json, "message");
  if (driver_version != 0) {
    json["driver_version"] = driver_version;
    json["driver"] = driver;
    json["means"] = means;
  }
  if (thread != 0) json["thread"] = thread;
  if (state) json["state"] = static_cast<int>(*state);
  for (const GpuDevice& d : view.devices) {
    Json device = {{"uuid", d.uuid},
                   {"model", d.model},
                   {"total", d.total_bytes},
                   {"free", d.free_bytes},
                   {"mig", d.mig}};
    if (!d.memory_known) device["memory_known"] = false;
    if (!d.uses_known) device["uses_known"] = false;
    if (d.lost) device["lost"] = true;
    if (!d.trouble.empty()) device["trouble"] = d.trouble;
    json["devices"].push_back(std::move(device));
  }
  if (!view.unreachable.empty()) json["unreachable"] = view.unreachable;
  for (const GpuUse& u : view.uses) {
    Json use = {{"pid", u.pid}, {"uuid", u.uuid}};
    if (u.bytes) use["bytes"] = *u.bytes;
    json["uses"].push_back(std::move(use));
  }
  if (more) json["more"] = true;
  // A driver's message need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> HelperAnswer::Packets() const {
  std::vector<std::string> packets;
  HelperAnswer part = *this;
  part.view.uses.clear();
  auto next = view.uses.begin();
  do {
    const auto end = next + std::min<ptrdiff_t>(kUsesInAPacket, view.uses.end() - next);
    part.view.uses.assign(next, end);
    next = end;
    part.more = next != view.uses.end();
    packets.push_back(part.Encode());
    part.view.devices.clear();
    part.view.unreachable.clear();
  } while (part.more);
  return packets;
}

absl::StatusOr<HelperAnswer> HelperAnswer::Decode(absl::string_view packet) {
  try {
    const Json json = Json::parse(packet.begin(), packet.end());
    HelperAnswer answer;
    answer.id = json.at("id");
    answer.status = StatusOf(json, "message");
    answer.driver_version = json.value("driver_version", 0);
    answer.driver = json.value("driver", "");
    answer.means = json.value("means", "");
    answer.thread = json.value("thread", 0);
    answer.more = json.value("more", false);
    if (json.contains("state")) answer.state = static_cast<ProcessState>(json["state"].get<int>());
    for (const Json& d : json.value("devices", Json::array())) {
      GpuDevice device{d.at("uuid"), d.at("model"), d.at("total"), d.at("free"), d.at("mig")};
      device.memory_known = d.value("memory_known", true);
      device.uses_known = d.value("uses_known", true);
      device.lost = d.value("lost", false);
      device.trouble = d.value("trouble", "");
      answer.view.devices.push_back(std::move(device));
    }
    for (const Json& u : json.value("uses", Json::array())) {
      GpuUse use{u.at("pid"), u.at("uuid"), std::nullopt};
      if (u.contains("bytes")) use.bytes = u["bytes"].get<uint64_t>();
      answer.view.uses.push_back(std::move(use));
    }
    answer.view.unreachable = json.value("unreachable", std::vector<std::string>());
    return answer;
  } catch (const Json::exception& e) {
    return Malformed(e.what());
  }
}

}  // namespace rekindle::gpu
