#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/human_units.h"
#include "cli/commands.h"
#include "cli/streamed_call.h"
#include "cli/table.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

std::string Share(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string Time(int64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(unix_ns), absl::LocalTimeZone());
}

// Where the bytes are now: which of them would come back, and with whom the others are shared.
std::string BytesText(const v1::ImageBytes& bytes) {
  const uint64_t logical = bytes.logical_bytes();
  Table now({{"WHERE ITS BYTES ARE"},
             {"MEMORY", Align::kRight},
             {"SHARE", Align::kRight},
             {"ON DISK", Align::kRight}});
  auto add = [&](const std::string& where, uint64_t memory, uint64_t stored) {
    now.AddRow({where, FormatBytes(memory), Share(memory, logical), FormatBytes(stored)});
  };
  add("nowhere: all zero", bytes.zero_bytes(), 0);
  add("in this image alone (rm and gc free it)", bytes.unique_bytes(), bytes.unique_stored_bytes());
  add("shared with other images", bytes.shared_bytes(), bytes.shared_stored_bytes());
  for (const v1::ImageShare& share : bytes.shares()) {
    now.AddRow({absl::StrCat("  ", share.reference()), "", "", FormatBytes(share.stored_bytes())});
  }
  if (bytes.more_shares() > 0) now.AddRow({absl::StrCat("  and ", bytes.more_shares(), " more"), "", "", ""});
  if (bytes.others_stored_bytes() > 0) {
    now.AddRow({"  images of others", "", "", FormatBytes(bytes.others_stored_bytes())});
  }
  now.AddRow({"metadata that it added", "", "", FormatBytes(bytes.metadata_bytes())});
  add("all", logical, bytes.unique_stored_bytes() + bytes.shared_stored_bytes() + bytes.metadata_bytes());
  return absl::StrCat(now.ToString(), "compressed from ", FormatBytes(bytes.compressed_from_bytes()), " to ",
                      FormatBytes(bytes.compressed_to_bytes()), "; ", FormatBytes(bytes.raw_bytes()),
                      " stored as they are\n");
}

const char* RecordingEndText(v1::WorkingSet::End end) {
  switch (end) {
    case v1::WorkingSet::READY:
      return ", until it was ready";
    case v1::WorkingSet::ANSWERED:
      return ", until it answered on a socket that it listens on";
    case v1::WorkingSet::TIME:
      return ", for as long as was allowed";
    case v1::WorkingSet::ENDED:
      return ", until it ended or had all of its memory";
    default:
      return "";
  }
}

std::string WorkingSetText(const v1::InspectImageResponse& response) {
  if (!response.has_working_set()) return "no working set recorded: the next clone records it";
  const v1::WorkingSet& set = response.working_set();
  return absl::StrCat(
      "touch ", FormatBytes(set.bytes()), " (", set.pages(), " pages) first, ",
      Share(set.bytes(), set.lazy_bytes()), " of the lazy memory; ", set.recordings(),
      set.recordings() == 1 ? " recording" : " recordings",
      set.recorded_unix_ns() == 0 ? "" : absl::StrCat(", the last ", Time(set.recorded_unix_ns())),
      RecordingEndText(set.end()));
}

// `request` is that of an export or an import: both stream the same events.
template <typename Call>
int Transfer(Client& client, const Output& output, Interrupts& interrupts, Call call,
             const std::function<std::string(const v1::TransferResult&)>& describe) {
  const absl::StatusOr<v1::TransferEvent> event =
      StreamedResult<v1::TransferEvent>(client, output, interrupts, std::move(call));
  if (!event.ok()) return output.Fail(event.status());
  const v1::TransferResult& result = event->result();
  output.Json(result);
  output.Text(describe(result));
  for (const std::string& warning : result.warnings()) output.Warning(warning);
  return kDone;
}

}  // namespace

int InspectImage(Client& client, const Output& output, const v1::InspectImageRequest& request) {
  absl::StatusOr<v1::InspectImageResponse> response = client.InspectImage(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  const v1::Image& image = response->image();
  std::string text = absl::StrCat(image.reference(), "\n  digest    ", image.digest(), "\n");
  auto add = [&](absl::string_view name, const std::string& value) {
    if (!value.empty()) absl::StrAppendFormat(&text, "  %-9s %s\n", name, value);
  };
  add("parent", image.parent_digest() == image.digest() ? "the same image under another name ('rekindle tag')"
                                                        : image.parent_digest());
  // What the store knows of a copy is when it came.
  const bool is_copy = image.labels().contains(v1::kOriginLabel);
  if (is_copy) add("came", Time(image.created_unix_ns()));
  add("taken", absl::StrCat(is_copy ? "" : Time(image.created_unix_ns()) + " ", "on ",
                            Shown(response->machine(), 64), ", Linux ", Shown(response->kernel(), 64),
                            ", CRIU ", Shown(response->criu_version(), 64)));
  add("owner", absl::StrCat("uid ", image.owner_uid()));
  add("job", Shown(response->job_name(), 64));
  add("command", Shown(response->command(), 200));
  add("folder", Shown(response->working_directory(), 200));
  add("log", Shown(response->log(), 200));
  if (response->freeze_seconds() > 0) add("frozen", FormatSeconds(response->freeze_seconds()));
  if (response->has_gpu()) {
    const v1::ImageGpu& gpu = response->gpu();
    add("GPU", absl::StrCat(FormatBytes(gpu.device_bytes()), " of device memory, driver ",
                            gpu.driver().empty() ? "?" : gpu.driver()));
    for (const v1::GpuDevice& device : gpu.devices())
      add("", absl::StrCat(device.uuid(), ", ", device.model()));
  }
  for (int i = 0; i < response->copied_to_size(); ++i)
    add(i == 0 ? "copied to" : "", Shown(response->copied_to(i), 200));
  add("clones", WorkingSetText(*response));
  for (const auto& [key, value] : image.labels()) add("label", Shown(absl::StrCat(key, "=", value), 200));
  output.Text(text);

  const uint64_t logical = image.logical_bytes();
  Table found({{"WHEN IT WAS TAKEN"}, {"MEMORY", Align::kRight}, {"SHARE", Align::kRight}});
  found.AddRow({"all zero", FormatBytes(image.zero_bytes()), Share(image.zero_bytes(), logical)});
  found.AddRow({"in the parent", FormatBytes(image.parent_bytes()), Share(image.parent_bytes(), logical)});
  found.AddRow(
      {"elsewhere in the store", FormatBytes(image.shared_bytes()), Share(image.shared_bytes(), logical)});
  found.AddRow({absl::StrCat("new, stored as ", FormatBytes(image.stored_bytes())),
                FormatBytes(image.new_bytes()), Share(image.new_bytes(), logical)});
  found.AddRow({"all", FormatBytes(logical), ""});
  output.Text(absl::StrCat("\n", found.ToString()));
  output.Text(absl::StrCat("\n", BytesText(response->bytes())));
  for (const std::string& warning : response->warnings()) output.Warning(warning);

  if (!response->processes().empty()) {
    Table processes({{"PID", Align::kRight},
                     {"PARENT", Align::kRight},
                     {"THREADS", Align::kRight},
                     {"MEMORY", Align::kRight},
                     {"COMMAND"}});
    for (const v1::ImageProcess& process : response->processes()) {
      processes.AddRow({absl::StrCat(process.pid()), absl::StrCat(process.parent_pid()),
                        absl::StrCat(process.threads()), FormatBytes(process.memory_bytes()),
                        Shown(process.command(), 70)});
    }
    output.Text(absl::StrCat("\n", processes.ToString()));
  }
  if (!response->written_files().empty()) {
    Table files({{"FILE THAT IT WROTE"}, {"SIZE", Align::kRight}, {"HOW"}, {"CONTENT"}});
    for (const v1::FileOfImage& file : response->written_files()) {
      files.AddRow({Shown(file.path(), 200), FormatBytes(file.size()),
                    file.shared_memory() ? "shared memory"
                    : file.tracked()     ? "tracked"
                    : file.in_place()    ? "in place"
                                         : "at its end",
                    file.has_content() ? "in the image" : "-"});
    }
    output.Text(absl::StrCat("\n", files.ToString()));
  }
  if (!response->objects().empty()) {
    Table objects({{"OBJECT"}, {"KIND"}, {"SIZE", Align::kRight}});
    for (const v1::ImageObject& object : response->objects()) {
      objects.AddRow({object.name(), object.paged() ? "pages" : "blob", FormatBytes(object.bytes())});
    }
    output.Text(absl::StrCat("\n", objects.ToString()));
  }
  return kDone;
}

int DiffImages(Client& client, const Output& output, const v1::DiffImagesRequest& request) {
  absl::StatusOr<v1::DiffImagesResponse> response = client.DiffImages(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  Table table({{"PROCESS"},
               {"AREA"},
               {"A", Align::kRight},
               {"B", Align::kRight},
               {"EQUAL", Align::kRight},
               {"DIFFERENT IN B", Align::kRight}});
  uint64_t a = 0, b = 0, equal = 0;
  for (const v1::AreaDifference& area : response->areas()) {
    a += area.bytes_a();
    b += area.bytes_b();
    equal += area.equal_bytes();
    table.AddRow({area.process(), Shown(area.area(), 60), FormatBytes(area.bytes_a()),
                  FormatBytes(area.bytes_b()), FormatBytes(area.equal_bytes()),
                  FormatBytes(area.bytes_b() - std::min(area.bytes_b(), area.equal_bytes()))});
  }
  table.AddRow(
      {"all", "", FormatBytes(a), FormatBytes(b), FormatBytes(equal), FormatBytes(b - std::min(b, equal))});
  output.Text(table.ToString());
  return kDone;
}

int RemoveImages(Client& client, const Output& output, const v1::RemoveImagesRequest& request,
                 const std::string& of_store) {
  absl::StatusOr<v1::RemoveImagesResponse> response = client.RemoveImages(request);
  if (!response.ok()) return output.Fail(response.status());
  for (const std::string& warning : response->warnings()) output.Warning(warning);
  output.Json(*response);
  output.Text(absl::StrCat("removed ", absl::StrJoin(response->removed(), ", "),
                           "; an administrator's 'rekindle ", of_store, "gc' frees the space\n"));
  return kDone;
}

int TagImage(Client& client, const Output& output, const v1::TagImageRequest& request) {
  absl::StatusOr<v1::TagImageResponse> response = client.TagImage(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  output.Text(
      absl::StrCat(response->image().reference(), " is ", request.image(), ", and shares its data\n"));
  return kDone;
}

int DropWorkingSet(Client& client, const Output& output, const v1::DropWorkingSetRequest& request) {
  absl::StatusOr<v1::DropWorkingSetResponse> response = client.DropWorkingSet(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  output.Text(response->dropped() ? absl::StrCat("the working set of ", request.image(),
                                                 " is dropped: the next clone records it\n")
                                  : absl::StrCat("no working set of ", request.image(), " was recorded\n"));
  return kDone;
}

int ExportImage(Client& client, const Output& output, Interrupts& interrupts,
                const v1::ExportImageRequest& request) {
  auto call = [&](const Client::OnEvent<v1::TransferEvent>& on_event) {
    return client.ExportImage(request, on_event);
  };
  return Transfer(client, output, interrupts, call, [&](const v1::TransferResult& result) {
    return absl::StrCat(result.image().reference(), " written to ", request.criu_directory(), ": ",
                        result.files(), " files, ", FormatBytes(result.bytes()), "\n");
  });
}

int ImportImage(Client& client, const Output& output, Interrupts& interrupts,
                const v1::ImportImageRequest& request) {
  auto call = [&](const Client::OnEvent<v1::TransferEvent>& on_event) {
    return client.ImportImage(request, on_event);
  };
  return Transfer(client, output, interrupts, call, [&](const v1::TransferResult& result) {
    return absl::StrCat(result.image().reference(), " taken in from ", request.criu_directory(), ": ",
                        FormatBytes(result.image().logical_bytes()), ", stored as ",
                        FormatBytes(result.image().stored_bytes()), "\n");
  });
}

}  // namespace rekindle::cli
