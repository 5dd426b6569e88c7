#include "gpu_state/device_plan.h"

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/human_units.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::gpu {
namespace {

const GpuDevice* Find(absl::Span<const GpuDevice> devices, absl::string_view uuid) {
  auto it =
      std::find_if(devices.begin(), devices.end(), [uuid](const GpuDevice& d) { return d.uuid == uuid; });
  return it == devices.end() ? nullptr : &*it;
}

std::string List(absl::Span<const GpuDevice> devices) {
  if (devices.empty()) return "no GPU";
  return absl::StrJoin(devices, ", ", [](std::string* out, const GpuDevice& d) {
    absl::StrAppend(out, d.uuid, " (", d.model, ", ", FormatBytes(d.free_bytes), " of ",
                    FormatBytes(d.total_bytes), " free)");
  });
}

absl::Status CheckModel(const GpuDevice& from, const GpuDevice& to) {
  // Of a GPU that has gone nothing may be known; the driver then has the last word.
  if (from.model == to.model || from.model.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the state was on ", from.uuid, " (", from.model,
                                                    ") and can't go onto ", to.uuid, " (", to.model,
                                                    "): the driver restores onto the same model only"));
}

}  // namespace

absl::StatusOr<DevicePairs> ParseDevicePairs(absl::string_view text) {
  DevicePairs pairs;
  std::set<std::string> from, to;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    RK_ASSIGN_OR_RETURN(cuda::Uuid old_uuid, ParseUuid(sides.first));
    RK_ASSIGN_OR_RETURN(cuda::Uuid new_uuid, ParseUuid(sides.second));
    pairs.emplace_back(FormatUuid(old_uuid), FormatUuid(new_uuid));
    if (!from.insert(pairs.back().first).second || !to.insert(pairs.back().second).second) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' names a GPU twice on one side"));
    }
  }
  if (pairs.empty())
    return absl::InvalidArgumentError("a GPU map is OLD=NEW,…, each a UUID (`nvidia-smi -L`)");
  return pairs;
}

std::map<std::string, uint64_t> BytesByDevice(absl::Span<const GpuUse> uses) {
  std::map<std::string, uint64_t> bytes;
  for (const GpuUse& use : uses) bytes[use.uuid] += use.bytes.value_or(0);
  return bytes;
}

uint64_t KnownBytes(absl::Span<const GpuUse> uses) {
  uint64_t bytes = 0;
  for (const GpuUse& use : uses) bytes += use.bytes.value_or(0);
  return bytes;
}

std::vector<GpuUse> UsesOf(absl::Span<const GpuUse> uses, absl::Span<const pid_t> pids) {
  std::vector<GpuUse> result;
  for (const GpuUse& use : uses) {
    if (absl::c_linear_search(pids, use.pid)) result.push_back(use);
  }
  return result;
}

absl::Status CheckRoom(const std::map<std::string, uint64_t>& needed, absl::Span<const GpuDevice> present,
                       absl::Span<const GpuUse> present_uses) {
  for (const auto& [uuid, bytes] : needed) {
    const GpuDevice* device = Find(present, uuid);
    if (device == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no GPU ", uuid, " on this machine, which has ", List(present)));
    }
    if (device->free_bytes >= bytes) continue;
    std::vector<std::string> who;
    for (const GpuUse& use : present_uses) {
      if (use.uuid != uuid) continue;
      who.push_back(absl::StrCat(use.pid, " (", CommandLineOf(use.pid).substr(0, 40),
                                 use.bytes ? absl::StrCat(", ", FormatBytes(*use.bytes)) : "", ")"));
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "GPU ", uuid, " has ", FormatBytes(device->free_bytes), " of ", FormatBytes(device->total_bytes),
        " free and the job needs ", FormatBytes(bytes),
        who.empty() ? "" : absl::StrCat("; it is used by PID ", absl::StrJoin(who, ", ")),
        "; end or park (`rekindle gpu park`) one of its users, or name another GPU with --gpu-map"));
  }
  return absl::OkStatus();
}

DevicePairs WithOtherDevices(const DevicePairs& pairs, absl::Span<const GpuDevice> present) {
  DevicePairs all = pairs;
  std::set<std::string> from, to;
  for (const auto& [old_uuid, new_uuid] : pairs) {
    from.insert(old_uuid);
    to.insert(new_uuid);
  }
  std::vector<const GpuDevice*> displaced, left;
  for (const GpuDevice& device : present) {
    const bool is_from = from.count(device.uuid) > 0, is_to = to.count(device.uuid) > 0;
    if (!is_from && !is_to) all.emplace_back(device.uuid, device.uuid);
    if (!is_from && is_to) displaced.push_back(&device);
    if (is_from && !is_to) left.push_back(&device);
  }
  for (const GpuDevice* device : displaced) {
    const auto place = absl::c_find_if(left, [&](const GpuDevice* d) { return d->model == device->model; });
    if (place == left.end()) return {};
    all.emplace_back(device->uuid, (*place)->uuid);
    left.erase(place);
  }
  return all.size() > pairs.size() ? all : DevicePairs();
}

absl::StatusOr<DevicePairs> PlanDevices(absl::Span<const GpuDevice> recorded, absl::Span<const GpuUse> uses,
                                        absl::Span<const GpuDevice> present,
                                        absl::Span<const GpuUse> present_uses, const DevicePairs& wanted) {
  const std::map<std::string, uint64_t> had = BytesByDevice(uses);
  auto bytes_on = [&had](const std::string& uuid) {
    auto it = had.find(uuid);
    return it == had.end() ? 0 : it->second;
  };
  std::map<std::string, std::string> target;
  const bool all_there = std::all_of(recorded.begin(), recorded.end(),
                                     [&](const GpuDevice& d) { return Find(present, d.uuid) != nullptr; });
  if (!wanted.empty()) {
    for (const auto& [from, to] : wanted) {
      if (Find(recorded, from) == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the job was not on GPU ", from, ", but on ", List(recorded)));
      }
      target[from] = to;
    }
    // The driver wants all or none.
    for (const GpuDevice& device : recorded) target.emplace(device.uuid, device.uuid);
  } else if (all_there) {
    for (const GpuDevice& device : recorded) target[device.uuid] = device.uuid;
  } else {
    std::set<std::string> taken;
    // The largest first, each onto the emptiest.
    std::vector<const GpuDevice*> order;
    for (const GpuDevice& device : recorded) order.push_back(&device);
    std::sort(order.begin(), order.end(),
              [&](const GpuDevice* a, const GpuDevice* b) { return bytes_on(a->uuid) > bytes_on(b->uuid); });
    for (const GpuDevice* device : order) {
      const GpuDevice* best = nullptr;
      for (const GpuDevice& candidate : present) {
        if (candidate.model != device->model || candidate.mig || taken.count(candidate.uuid) > 0) continue;
        if (best == nullptr || candidate.free_bytes > best->free_bytes) best = &candidate;
      }
      if (best == nullptr) {
        return absl::FailedPreconditionError(absl::StrCat("the job's state was on ", recorded.size(),
                                                          " GPU(s), ", List(recorded), "; this machine has ",
                                                          List(present), ": not as many of the same model"));
      }
      taken.insert(best->uuid);
      target[device->uuid] = best->uuid;
    }
  }
  std::map<std::string, uint64_t> needed;
  DevicePairs pairs;
  std::set<std::string> used;
  bool same = true;
  for (const GpuDevice& device : recorded) {
    const std::string& to = target[device.uuid];
    const GpuDevice* there = Find(present, to);
    if (there == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no GPU ", to, " on this machine, which has ", List(present)));
    }
    RK_RETURN_IF_ERROR(CheckModel(device, *there));
    if (!used.insert(to).second) {
      return absl::InvalidArgumentError(absl::StrCat("two GPUs of the job would go onto ", to));
    }
    needed[to] = bytes_on(device.uuid);
    pairs.emplace_back(device.uuid, to);
    same &= device.uuid == to;
  }
  RK_RETURN_IF_ERROR(CheckRoom(needed, present, present_uses));
  // The driver takes the ordinary way back when it is given none.
  if (same) pairs.clear();
  return pairs;
}

}  // namespace rekindle::gpu
