"""Readings of invented machines, exactly; the real one only for its shape."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys

import pytest

from frameworktax import host
from frameworktax.errors import UsageError
from frameworktax.host import checks, doctor, inventory, machine
from frameworktax.measure.session import MeasuringSession
from frameworktax.records import Environment

GIB = 1024**3
CPU = "sys/devices/system/cpu"


@pytest.fixture
def tree(tmp_path):
    """Return a function that writes files under a root and returns the root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def stat(*rows):
    head = "cpu  0 0 0 0 0 0 0 0 0 0\n"
    return head + "".join(
        f"cpu{cpu} {' '.join(map(str, ticks))}\n" for cpu, *ticks in rows
    ) + "intr 1 2 3\n"  # fmt: skip


def test_cpu_lists():
    assert machine.parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert machine.parse_cpu_list("") == ()


def test_cpu_times_count_disk_waits_as_idle_and_guests_once(tree):
    #                   user nice system idle iowait irq softirq steal guest
    root = tree(
        {"proc/stat": stat((0, 10, 1, 5, 100, 20, 2, 3, 4, 9), (1, 0, 0, 0, 50, 0, 0, 0, 0))}
    )
    assert machine.cpu_times(root) == {0: (25, 4, 145), 1: (0, 0, 50)}


def test_foreign_load_leaves_out_our_own(tree, monkeypatch):
    root = tree(
        {"proc/stat": stat((0, 100, 0, 0, 900, 0, 0, 0, 0), (1, 0, 0, 0, 1000, 0, 0, 0, 0))}
    )
    own = iter([1.0, 1.2])
    hertz = os.sysconf("SC_CLK_TCK")

    def pass_time(seconds):
        assert seconds == 0.5
        tree({"proc/stat": stat((0, 140, 0, 0, 950, 0, 0, 0, 10), (1, 0, 0, 0, 1100, 0, 0, 0, 0))})

    monkeypatch.setattr(machine.time, "sleep", pass_time)
    monkeypatch.setattr(machine.time, "process_time", lambda: next(own))
    load = machine.foreign_load(0.5, root)
    # 50 of 200 ticks were busy, 10 of them stolen; 0.2 s were ours.
    assert load.stolen == pytest.approx(10 / 200)
    assert load.foreign == pytest.approx((50 - 0.2 * hertz) / 200)


def test_foreign_load_may_be_negative_and_may_be_unknown(tree, tmp_path, monkeypatch):
    root = tree({"proc/stat": stat((0, 0, 0, 0, 0, 0, 0, 0, 0))})
    own = iter([0.0, 1.0, 1.0, 1.0])

    def idle(_):
        return tree({"proc/stat": stat((0, 0, 0, 0, 100, 0, 0, 0, 0))})

    monkeypatch.setattr(machine.time, "sleep", idle)
    monkeypatch.setattr(machine.time, "process_time", lambda: next(own))
    assert machine.foreign_load(1.0, root).foreign < 0
    assert machine.foreign_load(0.0, tmp_path / "none") is None


def test_cpus_are_the_quietest_on_distinct_cores(tree, monkeypatch):
    siblings = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
    files = {f"{CPU}/cpu{c}/topology/thread_siblings_list": s for c, s in siblings.items()}
    quiet = [(c, 0, 0, 0, 0, 0, 0, 0, 0) for c in range(8)]
    root = tree(files | {"proc/stat": stat(*quiet)})
    busy = {5: 90, 2: 10}  # core 1 through its second thread, core 2 a little

    def pass_time(_):
        tree({"proc/stat": stat(*[(c, busy.get(c, 0), 0, 0, 100, 0, 0, 0, 0) for c in range(8)])})

    def pick(threads, usable=range(8), near=()):
        tree({"proc/stat": stat(*quiet)})
        monkeypatch.setattr(machine, "usable_cpus", lambda: tuple(usable))
        monkeypatch.setattr(machine.time, "sleep", pass_time)
        return host.pick_cpus(threads, root, near=near)

    assert pick(1) == (3,)  # 0 is as quiet, but takes the interrupts
    assert pick(2) == (3, 4)  # core 0 through its other thread
    assert pick(4) == (1, 3, 4, 6)  # a thread of each core
    assert pick(5) == (1, 3, 4, 6, 7)
    assert pick(2, [1, 5]) == (1, 5)  # no more cores allowed
    assert pick(3, [1]) == (1,)
    assert pick(1, near=(1, 2, 5)) == (2,)  # near comes before quiet
    assert pick(2, near=(2,)) == (2, 3)
    assert pick(1, [0, 3], near=(2,)) == (3,)


def test_another_system_measures_nothing_and_reads_what_was_measured(monkeypatch):
    monkeypatch.delattr(machine.os, "sched_getaffinity")
    assert host.usable_cpus() == tuple(range(os.cpu_count()))
    host.need_linux("measuring")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(UsageError, match="measuring needs Linux, and this is Darwin; report, "):
        host.need_linux("measuring")
    with pytest.raises(UsageError, match="measuring needs Linux"):
        MeasuringSession(None, None)
    with pytest.raises(UsageError, match="doctor needs Linux"):
        host.doctor(None)


def test_a_current_folder_that_was_removed_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    host.need_surroundings()
    folder.rmdir()
    with pytest.raises(UsageError, match="was removed; change to one"):
        MeasuringSession(None, None)


def test_an_address_space_in_which_imports_hang_is_refused(monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1 << 30, 1 << 30))
    with pytest.raises(UsageError, match=r"allows 1.0 GiB .* run ulimit -v unlimited"):
        MeasuringSession(None, None)
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1 << 32, -1))
    host.need_surroundings()


def test_settings_of_developers_do_not_reach_a_measuring_process():
    """They slow every call, and make an error of a warning that an exporter gives."""
    code = "import sys, warnings; print(sys.flags.dev_mode, warnings.filters[0][0] == 'error')"
    given = {**os.environ, "PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"}
    for variables, flags in (
        (given, "True True"),
        ({**given, **host.worker_environment(1)}, "False False"),
    ):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == flags


def test_worker_environment_sets_every_library_to_the_same_threads():
    variables = host.worker_environment(3)
    assert {v for k, v in variables.items() if k.endswith("_THREADS")} == {"3"}
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert variables["TOKENIZERS_PARALLELISM"] == "false"
    assert variables["PYTHONHASHSEED"] == "0"


MEMINFO = {"proc/meminfo": "MemTotal:  16777216 kB\nMemFree: 1 kB\nMemAvailable:   8388608 kB\n"}


def test_memory_without_a_limit(tree):
    root = tree(MEMINFO)
    assert host.memory_available_bytes(root) == 8 * GIB
    assert machine.cgroup_memory_bytes(root) is None


def test_the_tightest_cgroup_above_us_counts(tree):
    root = tree(
        MEMINFO
        | {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/memory.max": "max\n",
            "sys/fs/cgroup/outer/inner/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/outer/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/outer/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        }
    )
    assert machine.cgroup_memory_bytes(root) == (4 * GIB, GIB)
    assert host.memory_available_bytes(root) == GIB
    assert machine.cgroup_cpus(root) == 1.5


def test_cgroups_of_version_1(tree):
    root = tree(
        MEMINFO
        | {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",  # none
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            "sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes": "0\n",
            "sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    assert machine.cgroup_memory_bytes(root) == (2 * GIB, 2 * GIB)
    assert machine.cgroup_cpus(root) == 0.5


@pytest.mark.parametrize(
    ("folder", "limit", "used", "stat"),
    [
        ("sys/fs/cgroup/job", "memory.max", "memory.current", "active_file 9\ninactive_file {}\n"),
        ("sys/fs/cgroup/memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "inactive_file 5\ntotal_inactive_file {}\n"),
    ],
)  # fmt: skip
def test_files_that_were_read_once_take_no_memory_from_a_container(tree, folder, limit, used, stat):
    root = tree(
        MEMINFO
        | {
            "proc/self/cgroup": "4:memory:/job\n0::/job\n",
            f"{folder}/{limit}": f"{4 * GIB}\n",
            f"{folder}/{used}": f"{4 * GIB}\n",
            f"{folder}/memory.stat": stat.format(3 * GIB),
        }
    )
    assert machine.cgroup_memory_bytes(root) == (4 * GIB, 3 * GIB)
    assert host.memory_available_bytes(root) == 3 * GIB


BARE_METAL = MEMINFO | {
    "proc/cpuinfo": "processor : 0\nmodel name\t: Intel(R) Xeon(R) W-2255\ncpu MHz\t: 3700.125\n"
    "flags\t\t: fpu vme avx512f\n",
    "proc/loadavg": "0.25 0.10 0.05 1/200 99\n",
    "proc/stat": stat((0, 0, 0, 0, 10, 0, 0, 0, 0)),
    f"{CPU}/online": "0-3\n",
    f"{CPU}/cpu0/topology/thread_siblings_list": "0,2\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave\n",
    f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "3699500\n",
    f"{CPU}/intel_pstate/no_turbo": "0\n",
    "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
}


def test_environment_of_a_workstation(tree, monkeypatch):
    monkeypatch.setattr(inventory, "gpus", lambda: ())
    found = host.environment(tree(BARE_METAL), sampler="perf-event")
    assert (found.cpu, found.cores, found.threads_per_core) == ("Intel(R) Xeon(R) W-2255", 4, 2)
    assert (found.governor, found.frequency_mhz, found.turbo) == ("powersave", 3699.5, True)
    assert (found.memory_bytes, found.load_1min) == (16 * GIB, 0.25)
    assert (found.virtualization, found.sampler) == (None, "perf-event")
    assert found.libraries["numpy"].count(".") == 2
    json.dumps(dataclasses.asdict(found))


def test_what_cannot_be_read_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(inventory, "gpus", lambda: ())
    found = host.environment(tmp_path)
    unknown = ("threads_per_core", "memory_bytes", "load_1min", "governor", "frequency_mhz",
               "turbo", "virtualization")  # fmt: skip
    assert {name: getattr(found, name) for name in unknown} == dict.fromkeys(unknown)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"proc/cpuinfo": "flags : fpu hypervisor\n", "sys/class/dmi/id/sys_vendor": "QEMU"},
            "QEMU",
        ),
        ({"proc/cpuinfo": "flags : hypervisor\n"}, "virtual machine"),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
        ({".dockerenv": "", "proc/cpuinfo": "flags : fpu\n"}, "container"),
        (
            {"sys/class/dmi/id/sys_vendor": "Amazon EC2", "proc/cpuinfo": "model name : Xeon\n"},
            None,
        ),
        ({"sys/class/dmi/id/product_name": "KVM", "proc/cpuinfo": "BogoMIPS : 50\n"}, "KVM"),
    ],
)
def test_virtualization(tree, files, expected):
    assert inventory.virtualization(tree(files)) == expected


def test_turbo_of_both_drivers(tree, tmp_path):
    assert inventory.turbo(tmp_path) is None
    assert inventory.turbo(tree({f"{CPU}/cpufreq/boost": "0"})) is False
    assert inventory.turbo(tree({f"{CPU}/intel_pstate/no_turbo": "0"})) is True


def test_gpus_are_read_from_nvidia_smi():
    text = (
        "0, NVIDIA H200, 143771, 570.86, 9.0, 1980, 1980, 3201, Enabled, Default, Disabled, "
        "00000000:3B:00.0\n"
        "1, Tesla K80, 11441, 470.1, [N/A], 562, [Not Supported], 2505, Disabled, Prohibited, "
        "[N/A], 00000000:AF:00.0\n"
    )
    assert inventory.parse_gpus(text) == (
        {"index": 0, "name": "NVIDIA H200", "memory_mib": 143771, "driver": "570.86",
         "compute_capability": "9.0", "sm_clock_mhz": 1980, "max_sm_clock_mhz": 1980,
         "memory_clock_mhz": 3201, "persistence_mode": "Enabled", "compute_mode": "Default",
         "mig_mode": "Disabled", "pci_bus_id": "00000000:3B:00.0"},
        {"index": 1, "name": "Tesla K80", "memory_mib": 11441, "driver": "470.1",
         "compute_capability": None, "sm_clock_mhz": 562, "max_sm_clock_mhz": None,
         "memory_clock_mhz": 2505, "persistence_mode": "Disabled", "compute_mode": "Prohibited",
         "mig_mode": None, "pci_bus_id": "00000000:AF:00.0"},
    )  # fmt: skip
    assert inventory.parse_gpus("") == ()


@pytest.mark.parametrize(
    ("said", "count"),
    [(None, None), ("", 0), ("4211\n4212\n", 2), ("[Insufficient Permissions]\n", 1)],
)
def test_processes_on_a_gpu_are_counted_by_lines(monkeypatch, said, count):
    monkeypatch.setattr(inventory, "_smi", lambda question: said)
    assert inventory.gpu_processes() == count


def test_without_nvidia_smi_a_gpu_is_what_its_driver_says(tree, monkeypatch):
    """A container may have the card and not the tool."""
    monkeypatch.setattr(inventory, "_smi", lambda question: None)
    model = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 31\nDevice Minor: \t 3\n"
    root = tree({
        "proc/driver/nvidia/gpus/0000:3b:00.0/information": model,
        "proc/driver/nvidia/gpus/0000:af:00.0/information": "",
        "sys/module/nvidia/version": "580.65.06\n",
    })  # fmt: skip
    assert inventory.gpus(root) == (
        {"index": 0, "name": "NVIDIA H100 80GB HBM3", "driver": "580.65.06",
         "pci_bus_id": "0000:3b:00.0"},
        {"index": 1, "name": None, "driver": "580.65.06", "pci_bus_id": "0000:af:00.0"},
    )  # fmt: skip
    assert host.cards(inventory.gpus(root))[0] == "NVIDIA H100 80GB HBM3, driver 580.65.06"
    assert inventory.gpus(root / "elsewhere") == ()


@pytest.mark.parametrize(
    ("files", "makers"),
    [([], set()), (["dev/nvidiactl", "dev/nvidia-uvm"], set()),
     (["proc/driver/nvidia/gpus/0000:01/information"], {"NVIDIA"}), (["dev/nvidia0"], {"NVIDIA"}),
     (["dev/nvidia12"], {"NVIDIA"}), (["dev/kfd"], {"AMD"}), (["dev/dxg"], {"AMD"}),
     (["dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"], {"AMD", "NVIDIA"})],
)  # fmt: skip
def test_a_device_of_any_driver_is_seen(tree, files, makers):
    root = tree(dict.fromkeys(files, ""))
    assert host.gpu_makers(root) == makers


def test_a_driver_that_answers_is_enough_where_device_files_are_hidden(monkeypatch, tmp_path):
    monkeypatch.setattr(inventory.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(inventory, "ROOT", tmp_path)
    assert host.gpu_makers(tmp_path)
    assert not host.gpu_makers(tmp_path / "elsewhere")


GOOD = Environment(
    host="h", system="s", python="p", cpu="c", cores=4, affinity=(0, 1, 2, 3), threads_per_core=1,
    governor="performance", turbo=False, libraries=dict.fromkeys(inventory.EXTRAS, "1.0"),
)  # fmt: skip
QUIET = machine.Load(0.01, 0.0)


def findings(root, refused=None, load=QUIET, which=str, processes=lambda: None, **changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "environment", lambda root: dataclasses.replace(GOOD, **changes))
        patch.setattr(checks, "gpu_processes", processes)
        patch.setattr(machine, "foreign_load", lambda *, root: load)
        patch.setattr(machine.shutil, "which", which)
        return {check.code: check for check in doctor(refused, root)}


def test_a_good_machine_has_no_warning(tree, monkeypatch):
    monkeypatch.setattr(machine, "missing_compiler", lambda: None)  # with Python's headers
    checks = findings(tree(MEMINFO)).values()
    assert {check.code for check in checks if check.status != "ok"} == set()
    assert {check.remedy for check in checks} == {""}


def test_each_fault_is_found_with_its_remedy(tree):
    root = tree(
        {
            "proc/meminfo": "MemAvailable: 1048576 kB\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
            f"{CPU}/intel_pstate/no_turbo": "0\n",
        }
    )
    gpu = {"index": 0, "name": "G", "persistence_mode": "Disabled"}
    checks = findings(
        root,
        refused="kernel.perf_event_paranoid is 4",
        load=machine.Load(0.3, 0.05),
        which=lambda name: None,
        affinity=(0,),
        governor="powersave",
        turbo=True,
        threads_per_core=2,
        virtualization="KVM",
        libraries={},
        gpus=(gpu,),
    )
    bad = {code: check for code, check in checks.items() if check.status != "ok"}
    assert set(bad) == {
        "cores", "load", "governor", "turbo", "smt", "virtualization", "cgroup-cpu", "memory",
        "sampler", "compiler", "gpu", "gpu-state",
    } | {f"library-{name}" for name in inventory.EXTRAS if name != "py-spy"}  # fmt: skip
    assert all(check.remedy for check in bad.values())
    assert "30%" in bad["load"].text
    assert bad["sampler"].status == "missing"
    assert "paranoid is 4" in bad["sampler"].text
    assert bad["turbo"].remedy.endswith("intel_pstate/no_turbo")
    assert bad["library-openvino"].remedy == "pip install 'frameworktax[openvino]'"
    assert "2 processors" in bad["cgroup-cpu"].text


@pytest.mark.parametrize(
    ("names", "shown", "device", "cpus"),
    [
        ("AA", None, "cuda:0", (0, 1)),
        ("AA", None, "cuda:1", (2, 3)),
        ("AA", "1", "cuda:0", (2, 3)),
        ("AA", "GPU-8e2b", "cuda:0", ()),
        ("AB", None, "cuda:0", ()),  # CUDA may number them the other way round
        ("B", None, "cuda:0", (0, 1)),
        ("", None, "cuda:0", ()),
    ],
)
def test_the_processors_near_a_device_are_known_where_its_number_is(
    tree, monkeypatch, names, shown, device, cpus
):
    addresses = ("0000:3b:00.0", "0000:af:00.0")
    root = tree(
        {f"sys/bus/pci/devices/{a}/numa_node": f"{n}" for n, a in enumerate(addresses)}
        | {f"sys/devices/system/node/node{n}/cpulist": f"{2 * n}-{2 * n + 1}" for n in range(2)}
    )
    found = tuple(
        {"name": n, "pci_bus_id": f"0000{a}"} for n, a in zip(names, addresses, strict=False)
    )
    monkeypatch.setattr(inventory, "gpus", lambda root: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert host.near_cpus(device, root) == cpus


def test_what_shares_a_device_or_is_far_from_it_is_found(tree):
    files = {
        "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1",
        "sys/devices/system/node/node1/cpulist": "8-15",
        "tmp/nvidia-mps/control": "",
    }
    gpu = {"index": 0, "mig_mode": "Enabled", "compute_mode": "Exclusive_Process",
           "pci_bus_id": "00000000:3B:00.0"}  # fmt: skip
    libraries = {**GOOD.libraries, "nvidia-ml-py": "13"}
    checks = findings(
        tree({**MEMINFO, **files}), processes=lambda: 2, gpus=(gpu,), libraries=libraries
    )
    bad = {code for code, check in checks.items() if check.status != "ok"}
    assert bad == {"gpu-mig", "gpu-compute-mode", "gpu-numa", "gpu-mps", "gpu-processes"}
    fine = {"index": 0, "mig_mode": "Disabled", "compute_mode": "Default", "pci_bus_id": None}
    checks = findings(tree(MEMINFO), processes=lambda: 0, gpus=(fine,), libraries=libraries)
    assert "gpu-mps" in checks  # the file of above is still there
    (tree({}) / "tmp/nvidia-mps/control").unlink()
    checks = findings(tree(MEMINFO), processes=lambda: 0, gpus=(fine,), libraries=libraries)
    assert {code for code, check in checks.items() if check.status != "ok"} == set()


def test_a_device_that_is_not_listed_is_no_missing_device(tree):
    assert findings(tree(MEMINFO))["gpu"].status == "ok"
    assert findings(tree({**MEMINFO, "dev/kfd": ""}))["gpu"].status == "warning"
    gpu = {"index": 0, "name": "NVIDIA H100", "driver": "580", "pci_bus_id": "0000:3b:00.0"}
    found = findings(tree(MEMINFO), gpus=(gpu,), processes=lambda: None)["gpu"]
    assert found.status == "warning" and "NVIDIA H100" in found.text and "None" not in found.text


def hinted(root, **more):
    checks = findings(root, **more)
    lines = host.hints(list(checks.values()))
    assert not any("\n" in line for line in lines)  # a name from elsewhere begins no command
    return lines


def commands(lines):
    return [line for line in lines if not line.startswith("#")]


def test_a_good_machine_has_no_hint(tree):
    assert hinted(tree(MEMINFO)) == []


def test_each_hint_is_a_command_below_its_findings(tree):
    root = tree(MEMINFO)
    gpu = {"index": 0, "name": "G\nrm -rf /", "persistence_mode": "Disabled"}
    lines = hinted(
        root,
        refused="kernel.perf_event_paranoid is 4",
        load=machine.Load(0.3, 0.05),
        which=lambda name: None,
        governor="powersave",
        libraries=dict.fromkeys(set(inventory.EXTRAS) - {"onnx", "onnxscript"}, "1.0"),
        gpus=(gpu,),
    )
    assert commands(lines) == [
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        "sudo sysctl kernel.perf_event_paranoid=2",
        "pip install 'frameworktax[onnxruntime]'",
        "pip install nvidia-ml-py",
        "sudo nvidia-smi -pm 1",
    ]
    at = lines.index("pip install 'frameworktax[onnxruntime]'")
    said = [line.partition(": ")[0] for line in lines]
    assert said[at - 2 : at] == ["# library-onnx", "# library-onnxscript"]
    assert "30%" in lines[said.index("# load")]
    stolen = said.index("# virtualization")
    assert "5.0%" in lines[stolen]
    assert lines[stolen + 1].startswith("# use a dedicated host")


def test_a_container_that_may_not_sample_is_started_anew(tree):
    root = {**MEMINFO, "proc/sys/kernel/perf_event_paranoid": "2\n"}
    inside = commands(hinted(tree(root), refused="blocked", virtualization="KVM, container"))
    assert inside[0].startswith("docker run --cap-add PERFMON")
    outside = commands(hinted(tree(root), refused="blocked"))
    assert outside[0] == "sudo sysctl kernel.perf_event_paranoid=2"
    root["proc/sys/kernel/perf_event_paranoid"] = "4\n"
    inside = commands(hinted(tree(root), refused="blocked", virtualization="container"))
    assert inside[0] == "sudo sysctl kernel.perf_event_paranoid=2"


def test_the_switches_of_the_processor_are_hinted(tree):
    root = tree({**MEMINFO, f"{CPU}/cpufreq/boost": "1", "proc/self/cgroup": "0::/\n",
                 "sys/fs/cgroup/cpu.max": "200000 100000\n"})  # fmt: skip
    assert commands(hinted(root, turbo=True, threads_per_core=2)) == [
        "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost",
        "echo off | sudo tee /sys/devices/system/cpu/smt/control",
    ]
