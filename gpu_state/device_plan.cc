#include "gpu_state/device_plan.h"

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/human_units.h"
#include "base/shown_command.h"
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
    absl::StrAppend(out, d.uuid, " (", d.model, ", ",
                    d.lost            ? "does not answer"
                    : !d.memory_known ? "how much is free is not known"
                                      : absl::StrCat(FormatBytes(d.free_bytes), " of ",
                                                     FormatBytes(d.total_bytes), " free"),
                    ")");
  });
}

std::string HowToMend(absl::string_view gpu) {
  return absl::StrCat(
      "Reset it (`nvidia-smi --gpu-reset -i ", gpu,
      "`, once nobody uses it, rekindled included) or restart the machine; the kernel's log tells why it has "
      "gone (`dmesg | grep Xid`)");
}

// Of GPUs without a name: that one may be the one that is looked for.
std::string HintAtUnreachable(const DeviceView& present) {
  if (present.unreachable.empty()) return "";
  return absl::StrCat("; of one not even the name can be asked (", absl::StrJoin(present.unreachable, "; "),
                      "). ", HowToMend("NUMBER"));
}

absl::Status NotThere(const std::string& uuid, const DeviceView& present) {
  return absl::FailedPreconditionError(
      absl::StrCat("there is no GPU ", uuid, " on this machine, which has ", List(present.devices),
                   HintAtUnreachable(present),
                   "; or have the state go onto another one of its model (--gpu-map ", uuid, "=OTHER)"));
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

absl::Duration MoveMayTake(absl::Span<const GpuUse> uses, uint64_t context_bytes) {
  // At least: one of a size that nobody knows too. A false alarm is worse than a late one.
  constexpr absl::Duration kLeast = absl::Minutes(10);
  // What a kernel under way, which the driver may wait for, and the contexts take; and per byte, a quarter of
  // what was seen on an H200.
  constexpr absl::Duration kAnyMove = absl::Minutes(2);
  constexpr double kSlowestBytesPerSecond = 5e8;
  const auto bytes = static_cast<double>(KnownBytes(uses) + context_bytes * uses.size());
  return std::max(kLeast, kAnyMove + absl::Seconds(bytes / kSlowestBytesPerSecond));
}

std::vector<GpuUse> UsesOf(absl::Span<const GpuUse> uses, absl::Span<const pid_t> pids) {
  std::vector<GpuUse> result;
  for (const GpuUse& use : uses) {
    if (absl::c_linear_search(pids, use.pid)) result.push_back(use);
  }
  return result;
}

absl::Status DoesNotAnswer(const GpuDevice& device) {
  return absl::FailedPreconditionError(absl::StrCat(
      "GPU ", device.uuid, " does not answer NVIDIA's management library (", device.trouble,
      "), and nothing can be moved onto it. ", HowToMend(device.uuid),
      "; or have the state go onto another one of its model (--gpu-map ", device.uuid, "=OTHER)"));
}

std::optional<LostGpus> FindLost(const DeviceView& present) {
  std::vector<std::string> lost = present.unreachable;
  std::string name = "NUMBER";
  for (const GpuDevice& device : present.devices) {
    if (!device.lost) continue;
    name = device.uuid;
    lost.push_back(absl::StrCat(device.uuid, ": ", device.trouble));
  }
  if (lost.empty()) return std::nullopt;
  return LostGpus{
      absl::StrCat("a GPU does not answer NVIDIA's management library (", absl::StrJoin(lost, "; "), ")"),
      HowToMend(name)};
}

std::string HintAtLost(const DeviceView& present) {
  const std::optional<LostGpus> lost = FindLost(present);
  return !lost ? "" : absl::StrCat(lost->what, ": if the job uses it, that is why. ", lost->cure);
}

absl::Status CheckRoom(const std::map<std::string, uint64_t>& needed, const DeviceView& present) {
  for (const auto& [uuid, bytes] : needed) {
    const GpuDevice* device = Find(present.devices, uuid);
    if (device == nullptr) return NotThere(uuid, present);
    if (device->lost) return DoesNotAnswer(*device);
    if (!device->memory_known || device->free_bytes >= bytes) continue;
    std::vector<std::string> who;
    for (const GpuUse& use : present.uses) {
      if (use.uuid != uuid) continue;
      who.push_back(absl::StrCat(use.pid, " (", ShownCommandOf(use.pid),
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
                                        const DeviceView& present, const DevicePairs& wanted) {
  const std::map<std::string, uint64_t> had = BytesByDevice(uses);
  auto bytes_on = [&had](const std::string& uuid) {
    auto it = had.find(uuid);
    return it == had.end() ? 0 : it->second;
  };
  std::map<std::string, std::string> target;
  const bool all_there = absl::c_all_of(recorded, [&](const GpuDevice& d) {
    const GpuDevice* there = Find(present.devices, d.uuid);
    return there != nullptr && !there->lost;
  });
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
      for (const GpuDevice& candidate : present.devices) {
        if (candidate.model != device->model || candidate.mig || candidate.lost ||
            taken.count(candidate.uuid) > 0)
          continue;
        if (best == nullptr || candidate.free_bytes > best->free_bytes) best = &candidate;
      }
      if (best == nullptr) {
        std::string hint = HintAtLost(present);
        if (!hint.empty()) hint.insert(0, ". ");
        return absl::FailedPreconditionError(absl::StrCat(
            "the job's state was on ", recorded.size(), " GPU(s), ", List(recorded), "; this machine has ",
            List(present.devices), ": not as many of the same model", hint));
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
    const GpuDevice* there = Find(present.devices, to);
    if (there == nullptr) return NotThere(to, present);
    RK_RETURN_IF_ERROR(CheckModel(device, *there));
    if (!used.insert(to).second) {
      return absl::InvalidArgumentError(absl::StrCat("two GPUs of the job would go onto ", to));
    }
    needed[to] = bytes_on(device.uuid);
    pairs.emplace_back(device.uuid, to);
    same &= device.uuid == to;
  }
  RK_RETURN_IF_ERROR(CheckRoom(needed, present));
  // The driver takes the ordinary way back when it is given none.
  if (same) pairs.clear();
  return pairs;
}

}  // namespace rekindle::gpu
