#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/human_units.h"
#include "cli/commands.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

std::string MovedText(const v1::GpuMoveResponse& response) {
  const double gigabytes = static_cast<double>(response.bytes()) * 1e-9;
  return absl::StrFormat("%s in %s, %.2f GB/s\n", FormatBytes(response.bytes()),
                         FormatSeconds(response.seconds()),
                         response.seconds() > 0 ? gigabytes / response.seconds() : 0.0);
}

int Finish(const Output& output, const absl::StatusOr<v1::GpuMoveResponse>& response, const std::string& done,
           const std::string& was_so) {
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  output.Text(response->nothing_to_do() ? was_so : absl::StrCat(done, ": ", MovedText(*response)));
  return kDone;
}

// `call` waits for room before it moves anything, and is given up for a signal until then.
template <typename Call>
absl::StatusOr<v1::GpuMoveResponse> UntilInterrupted(Client& client, Interrupts& interrupts, Call call) {
  interrupts.SetAction([&client](int) { client.Cancel(); });
  absl::StatusOr<v1::GpuMoveResponse> response = call();
  interrupts.SetAction(nullptr);
  if (absl::IsCancelled(response.status())) {
    return absl::CancelledError(
        absl::StrCat(response.status().message(), "; `rekindle gpu ps` shows what is parked"));
  }
  return response;
}

std::string TroubleOf(const v1::GpuDevice& device) {
  const char* what = device.lost()              ? " does not answer, and which jobs use it is not known: "
                     : !device.has_free_bytes() ? ": how much memory it has and has free is not told: "
                                                : ": which jobs use it is not told: ";
  return absl::StrCat(device.uuid(), what, Shown(device.trouble(), 200));
}

std::string NameOfJob(int pid, const std::string& name) { return name.empty() ? absl::StrCat(pid) : name; }

}  // namespace

int ListGpus(Client& client, const Output& output, const v1::ListGpusRequest& request) {
  absl::StatusOr<v1::ListGpusResponse> response = client.ListGpus(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  output.Text(absl::StrFormat(
      "driver %s, CUDA %d.%d, checkpoints by %s\n\n", response->driver().empty() ? "?" : response->driver(),
      response->cuda_version() / 1000, response->cuda_version() % 1000 / 10, response->means()));
  Table devices({{"GPU"}, {"MODEL"}, {"MEMORY", Align::kRight}, {"FREE", Align::kRight}});
  for (const v1::GpuDevice& device : response->devices()) {
    devices.AddRow({device.uuid(), absl::StrCat(device.model(), device.mig() ? " (MIG)" : ""),
                    device.has_total_bytes() ? FormatBytes(device.total_bytes()) : "unknown",
                    device.has_free_bytes() ? FormatBytes(device.free_bytes()) : "unknown"});
  }
  output.Text(devices.ToString());
  for (const v1::GpuDevice& device : response->devices()) {
    if (!device.trouble().empty()) output.Text(absl::StrCat(TroubleOf(device), "\n"));
  }
  for (const std::string& gpu : response->unreachable())
    output.Text(absl::StrCat("not even the UUID of one can be asked: ", Shown(gpu, 200), "\n"));
  output.Text("\n");
  Table jobs({{"PID", Align::kRight}, {"NAME"}, {"STATE"}, {"GPU"}, {"MEMORY", Align::kRight}, {"COMMAND"}});
  for (const v1::GpuJob& job : response->jobs()) {
    std::string state = job.parked() ? "parked" : job.state();
    if (job.leases() > 0)
      absl::StrAppend(&state, ", leased ", job.leases(), job.leases() == 1 ? " time" : " times");
    if (job.pinned()) absl::StrAppend(&state, ", pinned");
    bool first = true;
    for (const v1::GpuUse& use : job.uses()) {
      jobs.AddRow({first ? absl::StrCat(job.pid()) : "", first ? job.name() : "", first ? state : "",
                   use.uuid(), use.has_bytes() ? FormatBytes(use.bytes()) : "?",
                   first ? Shown(job.command(), 60) : ""});
      first = false;
    }
    if (first) jobs.AddRow({absl::StrCat(job.pid()), job.name(), state, "-", "-", Shown(job.command(), 60)});
  }
  output.Text(jobs.ToString());
  for (const v1::GpuJob& job : response->jobs()) {
    const std::string& text = job.trouble().empty() ? job.why() : job.trouble();
    if (!text.empty()) output.Text(absl::StrCat(job.pid(), ": ", Shown(text, 600), "\n"));
  }
  return kDone;
}

int ParkGpu(Client& client, const Output& output, const v1::ParkGpuRequest& request) {
  const std::string job = NameOfJob(request.pid(), request.job());
  return Finish(output, client.ParkGpu(request), absl::StrCat(job, " is parked"),
                absl::StrCat(job, " is parked already\n"));
}

int ResumeGpu(Client& client, const Output& output, Interrupts& interrupts,
              const v1::ResumeGpuRequest& request) {
  const std::string job = NameOfJob(request.pid(), request.job());
  return Finish(output, UntilInterrupted(client, interrupts, [&] { return client.ResumeGpu(request); }),
                absl::StrCat(job, " is on its GPU again"), absl::StrCat(job, " is on its GPU already\n"));
}

int SwapGpu(Client& client, const Output& output, Interrupts& interrupts, const v1::SwapGpuRequest& request) {
  return Finish(output, UntilInterrupted(client, interrupts, [&] { return client.SwapGpu(request); }),
                absl::StrCat(NameOfJob(request.out_pid(), request.out_job()), " is parked, ",
                             NameOfJob(request.in_pid(), request.in_job()), " is on its GPU"),
                "nothing to swap\n");
}

int LeaseGpu(Client& client, const Output& output, const v1::LeaseGpuRequest& request) {
  absl::StatusOr<v1::LeaseGpuResponse> response = client.LeaseGpu(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  const std::string job = NameOfJob(request.pid(), request.job());
  // A daemon that is older gives no ID.
  const std::string& id = response->lease_id();
  output.Text(absl::StrCat(job, " is on its GPU (", FormatBytes(response->bytes()), ") after ",
                           FormatSeconds(response->seconds()), "; `rekindle gpu release",
                           id.empty() ? "" : absl::StrCat(" ", job, " --lease-id ", id),
                           "` gives it back\n"));
  return kDone;
}

int HoldGpu(Client& client, const Output& output, Interrupts& interrupts, const v1::HoldGpuRequest& request) {
  interrupts.SetAction([&client](int) { client.Cancel(); });
  bool had = false;
  absl::Status status = client.HoldGpu(request, [&](const v1::LeaseGpuResponse& response) {
    had = true;
    output.Json(response);
    output.Text(absl::StrCat(NameOfJob(request.lease().pid(), request.lease().job()), " is on its GPU (",
                             FormatBytes(response.bytes()), ") until this command ends\n"));
  });
  interrupts.SetAction(nullptr);
  if (had && absl::IsCancelled(status)) return kDone;
  return status.ok() ? static_cast<int>(kDone) : output.Fail(status);
}

int ReleaseGpu(Client& client, const Output& output, const v1::ReleaseGpuRequest& request) {
  absl::StatusOr<v1::ReleaseGpuResponse> response = client.ReleaseGpu(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  output.Text(absl::StrCat(NameOfJob(request.pid(), request.job()),
                           request.unpin() ? " is not pinned, and has " : " has ", response->leases(),
                           " leases left\n"));
  return kDone;
}

}  // namespace rekindle::cli
