//! gres.conf: which devices the nodes have.

use std::collections::BTreeMap;

use crate::catalogue::File;
use crate::hostlist::Hostlist;
use crate::merge::{Error, Piece, Rendered, merge};
use crate::syntax::{Statement, parse};
use crate::value::encode_name;

/// Everything that gres.conf is made from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GresConf {
    /// How slurmd looks for devices where no line says what there is; Slurm's own choice if `None`.
    pub auto_detect: Option<AutoDetect>,
    /// Devices that are listed, in the order of the file.
    pub devices: Vec<Device>,
    /// What the user wrote.
    pub extra_conf: String,
}

/// Slurm's ways of finding GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoDetect {
    /// Every way, until one finds something.
    Full,
    /// Through NVIDIA's management library.
    Nvml,
    /// Through the kernel's files, without a library.
    Nvidia,
    /// AMD.
    Rsmi,
    /// Intel.
    Oneapi,
    /// AWS Trainium and Inferentia.
    Nrt,
    /// Not at all.
    Off,
}

impl AutoDetect {
    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Nvml => "nvml",
            Self::Nvidia => "nvidia",
            Self::Rsmi => "rsmi",
            Self::Oneapi => "oneapi",
            Self::Nrt => "nrt",
            Self::Off => "off",
        }
    }
}

/// Devices of one name and type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// The nodes that have it; all nodes if `None`.
    pub nodes: Option<Hostlist>,
    /// `gpu` and the like, one of slurm.conf's `GresTypes`.
    pub name: String,
    /// The model.
    pub kind: Option<String>,
    /// How many, where no file says it.
    pub count: Option<u64>,
    /// Device files, with a range: `/dev/nvidia[0-7]`.
    pub file: Option<String>,
    /// Cores near the device.
    pub cores: Option<String>,
    /// Flags such as `CountOnly`.
    pub flags: Vec<String>,
}

/// Writes gres.conf.
pub fn render(conf: &GresConf) -> Result<Rendered, Error> {
    let GresConf {
        auto_detect,
        devices,
        extra_conf,
    } = conf;
    let user = parse(File::Gres, extra_conf, &BTreeMap::new()).map_err(Error::Unreadable)?;
    let mut pieces = Vec::new();
    if let Some(way) = auto_detect {
        pieces.push(Piece::default("AutoDetect", way.as_str()));
    }
    for device in devices {
        pieces.push(Piece::Record(device_line(device)?));
    }
    merge(File::Gres, pieces, &user, &[])
}

fn device_line(device: &Device) -> Result<Statement, Error> {
    let Device {
        nodes,
        name,
        kind,
        count,
        file,
        cores,
        flags,
    } = device;
    let name = word("a device's name", name)?;
    // Slurm wants the node list first, if there is one.
    let mut line = match nodes {
        Some(nodes) => Statement::new("NodeName", nodes.to_string()).with("Name", name),
        None => Statement::new("Name", name),
    };
    if let Some(kind) = kind {
        line = line.with("Type", word("a device's type", kind)?);
    }
    if let Some(count) = count {
        line = line.with("Count", count.to_string());
    }
    for (key, value) in [("File", file), ("Cores", cores)] {
        if let Some(value) = value {
            line = line.with(key, value.as_str());
        }
    }
    if !flags.is_empty() {
        let flags = flags
            .iter()
            .map(|flag| word("a device's flag", flag))
            .collect::<Result<Vec<_>, _>>()?;
        line = line.with("Flags", flags.join(","));
    }
    Ok(line)
}

fn word<'a>(field: &str, value: &'a str) -> Result<&'a str, Error> {
    encode_name(value).map_err(|source| Error::Value {
        field: field.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;

    #[test]
    fn devices_and_the_users_lines_stand_in_one_file() {
        let conf = GresConf {
            auto_detect: Some(AutoDetect::Nvml),
            devices: vec![
                Device {
                    nodes: Some("gpu-[0-3]".parse().unwrap()),
                    name: "gpu".into(),
                    kind: Some("h200".into()),
                    file: Some("/dev/nvidia[0-7]".into()),
                    flags: vec!["env_uuid".into()],
                    ..Device::default()
                },
                Device {
                    name: "license".into(),
                    count: Some(4),
                    ..Device::default()
                },
            ],
            extra_conf: "autodetect=Off\nName=nic File=/dev/nic0\nName=nic File=/dev/nic1\n".into(),
        };
        let rendered = render(&conf).unwrap();
        assert_eq!(
            rendered.text,
            "# Written by the operator: edits of this file are lost.\n\
             AutoDetect=Off\n\
             NodeName=gpu-[0-3] Name=gpu Type=h200 File=/dev/nvidia[0-7] Flags=env_uuid\n\
             Name=license Count=4\n\
             #\n### EXTRA CONFIG ###\n\
             Name=nic File=/dev/nic0\nName=nic File=/dev/nic1\n"
        );
        assert_eq!(rendered.findings, []);
    }

    #[test]
    fn a_value_cannot_add_an_option() {
        let device = Device {
            name: "gpu Count=9".into(),
            ..Device::default()
        };
        render(&GresConf {
            devices: vec![device],
            ..GresConf::default()
        })
        .unwrap_err();
    }
}
